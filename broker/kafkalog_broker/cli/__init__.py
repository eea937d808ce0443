"""The command line of the broker: ``python -m kafkalog_broker``, also installed as ``kafkalog-broker``."""

from __future__ import annotations

from kafkalog_broker.cli.broker_app import main

__all__ = ["main"]
