"""The command line of the broker: ``python -m broker``, also installed as ``kafkalog-broker``."""

from __future__ import annotations

from broker.cli.broker_app import main

__all__ = ["main"]
