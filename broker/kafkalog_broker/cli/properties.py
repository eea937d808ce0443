"""``properties``: prints every property with its meaning, range and default."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kafkalog_broker.cli.commands import DONE
from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.config.properties import properties_file

if TYPE_CHECKING:
    from kafkalog_broker.cli.commands import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "properties", help="print every property with its meaning, range and default"
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    sys.stdout.write(properties_file(BrokerConfig, "The broker's properties, each with its default."))
    return DONE
