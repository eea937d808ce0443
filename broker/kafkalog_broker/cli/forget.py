"""``forget``: gives the partitions of a broker that is gone for good to the others, empty."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog_broker.cli.commands import DONE, FAILED, Commands, add_command, say, zookeeper_session
from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.zookeeper.paths import JsonLayout
    from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

_SHOWN = 20
_HOLDING = b'{"version":1,"held_by":"kafkalog-broker forget"}'
_EXAMPLES = """\
examples:
  python -m kafkalog_broker forget 3 conf/server.properties
      says what is lost, and asks
  python -m kafkalog_broker forget 3 conf/server.properties --yes
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "forget", _run,
        summary="give up a broker of a cluster that is gone for good",
        description="Give the partitions of a broker that will not come back to those that are running: new "
            "and empty, as only that broker had their records. Their offsets begin above all that were given "
            "out, so no reader takes new records for old ones. Its process must have ended: one that is only "
            "cut off from ZooKeeper, or stopped (SIGSTOP, a paused machine), may go on to acknowledge "
            "records that nobody will see. Should the broker be started again, what it has is set aside, "
            "not deleted.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("broker", type=_node_id, metavar="ID", help="the node.id of the broker that is gone")
    parser.add_argument(
        "properties", type=Path, metavar="FILE", help="the server.properties of any broker of the cluster"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _node_id(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a node.id: a number from 0 on")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from kafkalog_broker.cluster.ownership import Ownership  # without ZooKeeper its client is not loaded
    from kafkalog_broker.cluster.registry import TopicRegistry, lost_partitions
    from kafkalog_broker.cluster.registry_reader import NoRegistry
    from kafkalog_broker.disk.data_directory import new_cluster_id
    from pyspark_kafkalog.zookeeper.paths import JsonLayout

    config, gone = BrokerConfig.load(options.properties, {}), options.broker
    if config.zookeeper_connect is None:
        raise InvalidConfig(f"{options.properties} has no zookeeper.connect: there is no cluster")
    layout = JsonLayout(config.zookeeper_prefix)
    with zookeeper_session(config) as session:
        registry = TopicRegistry(session, layout, Ownership(gone), new_cluster_id)
        try:
            view = registry.sync()
        except NoRegistry:
            raise InvalidConfig(
                f"there is no cluster in ZooKeeper at {session.hosts}{session.chroot}: no broker has made "
                f"{registry.path}; check zookeeper.connect and zookeeper.prefix in {options.properties}"
            ) from None
        lost = {
            name: gives
            for name, topic in view.topics.items()
            if (gives := lost_partitions(view, topic, gone))
        }
        deletions = [each.name for each in view.deletions.values() if gone in each.brokers]
        names_07 = [name for name, known in view.names_07.items() if gone in known.brokers]
        if not (lost or deletions or names_07 or gone in view.members):
            sys.stdout.write(f"the cluster has no broker {gone}, nor partitions of it\n")
            return DONE
        if session.read(layout.broker(gone)) is not None:
            raise _running(layout, gone)
        if lost and not options.yes and not _agreed(gone, lost):
            say("nothing was changed")
            return FAILED
        with _held(session, layout, gone):
            heirs = _heirs(session, layout, gone) if lost else []
            registry.forget(gone, heirs, SYSTEM_CLOCK.time_ms() * 1000)
    _report(gone, lost, heirs, deletions)
    return DONE


@contextmanager
def _held(session: ZooKeeperSession, layout: JsonLayout, gone: int) -> Iterator[None]:
    """Keep brokers from registering this id meanwhile. Raises `InvalidConfig`: one is registered."""
    from pyspark_kafkalog.zookeeper.session import NodeExists

    path = layout.broker(gone)
    try:
        session.create(path, _HOLDING, ephemeral=True)
    except NodeExists:
        raise _running(layout, gone) from None
    try:
        yield
    finally:
        session.delete(path)


def _running(layout: JsonLayout, gone: int) -> InvalidConfig:
    return InvalidConfig(f"broker {gone} is running ({layout.broker(gone)} in ZooKeeper); stop it first")


def _heirs(session: ZooKeeperSession, layout: JsonLayout, gone: int) -> list[int]:
    from pyspark_kafkalog.zookeeper.registries import broker_at, broker_ids

    others = (broker for broker in broker_ids(session, layout) if broker != gone)
    heirs = [broker for broker in others if broker_at(session, layout, broker) is not None]
    if not heirs:
        raise InvalidConfig("no other broker is running that could have its partitions")
    return heirs


def _agreed(gone: int, lost: Mapping[str, tuple[int, ...]]) -> bool:
    for name, numbers in list(lost.items())[:_SHOWN]:
        say(f"lost: all records of {name}, partitions {', '.join(map(str, numbers))}")
    if len(lost) > _SHOWN:
        say(f"... and those of {len(lost) - _SHOWN} more topics")
    say(f"the process of broker {gone} must have ended: one that was only stopped may go on")
    say(f"type {gone} to give up broker {gone} and all of this:")
    return sys.stdin.readline().strip() == str(gone)


def _report(gone: int, lost: Mapping[str, tuple[int, ...]], heirs: list[int], deletions: list[str]) -> None:
    if lost:
        count = sum(map(len, lost.values()))
        sys.stdout.write(f"{count} partitions of {len(lost)} topics now belong to brokers {heirs}, empty\n")
    if deletions:
        sys.stdout.write(f"the deletion of {', '.join(deletions)} no longer waits for broker {gone}\n")
    if not lost and not deletions:
        sys.stdout.write(f"the cluster no longer knows broker {gone}, which owned no partition\n")
