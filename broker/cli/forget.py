"""``forget``: give the partitions of a broker that is gone for good to the others, empty."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from broker.cli.commands import DONE, FAILED, add_command, say
from broker.config import BrokerConfig
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from broker.cli.commands import Commands

_SHOWN = 20
_EXAMPLES = """\
examples:
  python -m broker forget 3 conf/server.properties
      says what is lost, and asks
  python -m broker forget 3 conf/server.properties --yes
"""


def add_parser(commands: Commands) -> None:
    """Make the command known."""
    parser = add_command(
        commands, "forget", _run,
        summary="give up a broker of a cluster that is gone for good",
        description="Give the partitions of a broker that will not come back to those that are there: new "
            "and empty, as only that broker had their records. Their offsets begin above all that were given "
            "out, so no reader takes new records for old ones. Should the broker return, what it has is set "
            "aside, not deleted.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("broker", type=int, metavar="ID", help="the node.id of the broker that is gone")
    parser.add_argument(
        "properties", type=Path, metavar="FILE", help="the server.properties of any broker of the cluster"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _run(options: argparse.Namespace) -> int:
    from broker.cluster.ownership import Ownership  # without ZooKeeper its client is not loaded
    from broker.cluster.registry import TopicRegistry
    from broker.disk.data_directory import new_cluster_id
    from pyspark_kafkalog.zookeeper.paths import JsonLayout
    from pyspark_kafkalog.zookeeper.registries import brokers
    from pyspark_kafkalog.zookeeper.session import session_of

    config, gone = BrokerConfig.load(options.properties, {}), options.broker
    if config.zookeeper_connect is None:
        raise InvalidConfig(f"{options.properties} has no zookeeper.connect: there is no cluster")
    layout = JsonLayout(config.zookeeper_prefix)
    with session_of(config.zookeeper) as session:
        registry = TopicRegistry(session, layout, Ownership(gone), new_cluster_id())
        view = registry.sync()
        lost = {name: owned for name, topic in view.topics.items() if (owned := topic.owned_by(gone))}
        if not lost:
            sys.stdout.write(f"broker {gone} owns no partition\n")
            return DONE
        _check_live(gone, list(brokers(session, layout)))
        if not options.yes and not _agreed(gone, lost):
            say("nothing was changed")
            return FAILED
        there = list(brokers(session, layout))
        _check_live(gone, there)
        # A time in ms as an offset: no partition has had so many records, and a later time is larger.
        registry.forget(gone, there, SYSTEM_CLOCK.time_ms())
    count = sum(map(len, lost.values()))
    sys.stdout.write(f"{count} partitions of {len(lost)} topics now belong to brokers {there}, empty\n")
    return DONE


def _check_live(gone: int, there: list[int]) -> None:
    """Raises `InvalidConfig`: the broker is not gone, or nobody else is there."""
    if gone in there:
        raise InvalidConfig(f"broker {gone} is there: only a broker that does not run can be forgotten")
    if not there:
        raise InvalidConfig("no broker is there that could have its partitions")


def _agreed(gone: int, lost: Mapping[str, tuple[int, ...]]) -> bool:
    """Say what is lost, and ask."""
    for name, numbers in list(lost.items())[:_SHOWN]:
        say(f"lost: all records of {name}, partitions {', '.join(map(str, numbers))}")
    if len(lost) > _SHOWN:
        say(f"... and those of {len(lost) - _SHOWN} more topics")
    say(f"type {gone} to give up broker {gone} and all of this:")
    return sys.stdin.readline().strip() == str(gone)
