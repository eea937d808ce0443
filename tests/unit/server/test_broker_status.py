"""What a broker says of itself: its part of the cluster, what is wrong, and whether it can serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from kafkalog_broker.cluster.ownership import ClusterTopic, ClusterView, LiveBroker, Ownership, Pulse
from kafkalog_broker.groups.group_coordinator import Description
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import CommittedOffset
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.server.broker_status import BrokerSnapshots
from pyspark_kafkalog.errors import ConnectionLost, KafkaError
from pyspark_kafkalog.status.snapshot import BrokerStatus, PartitionStatus
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import BrokerNode
from pyspark_kafkalog.zookeeper.registries import BrokerIdInUse
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import START_MS, batch, open_manager
from tests.support.manual_clock import ManualClock


@dataclass
class Groups:
    """Committed offsets by group."""

    stored: Mapping[str, Mapping[tuple[str, int], int]] = field(default_factory=dict)

    def groups(self) -> list[Description]:
        return [Description(name, "Empty", "classic", "consumer") for name in self.stored]

    def describe(self, name: str) -> Description:
        return Description(name, "Empty", "classic", "consumer")

    @property
    def offsets(self) -> Groups:
        return self

    def fetch(self, name: str) -> Mapping[TopicPartition, CommittedOffset]:
        return {TopicPartition(*where): CommittedOffset(at) for where, at in self.stored[name].items()}


@dataclass
class Registered:
    """A registration as far as the status asks it."""

    ownership: Ownership | None
    connected: bool = True
    problem: KafkaError | None = None

    @property
    def session(self) -> Any:
        return SimpleNamespace(connected=self.connected)

    @property
    def id_in_use(self) -> KafkaError | None:
        return self.problem if isinstance(self.problem, BrokerIdInUse) else None


def snapshots(logs: LogManager, groups: Groups, registration: Registered | None) -> BrokerSnapshots:
    return BrokerSnapshots(
        1,
        "c",
        logs,
        cast("Any", groups),
        cast("Any", registration),
        lambda: ("here", 9092),
        "PLAINTEXT",
        ManualClock(START_MS),
    )


def in_cluster(logs: LogManager, pulse: Pulse | None = None) -> Ownership:
    """Broker 1 has two of four partitions of flights; 2 is live, 3 and its partition are away."""
    topic_id = uuid4()
    logs.create_topic("flights", topic_id, 4, numbers=(0, 2))
    for number in (0, 2):
        logs.log(TopicPartition("flights", number)).append(batch(b"x", b"y"))
    ownership = Ownership(1, pulse)
    stored = StoredTopic(topic_id, (0, 1, 2, 3), {})
    topic = ClusterTopic(stored, (1, 2, 1, 3), frozenset(), 0, 0)
    ownership.see(ClusterView(1, "r", {"flights": topic}))
    ownership.see_brokers([LiveBroker(2, {"PLAINTEXT": ("there", 9093)})])
    ownership.serve()
    return ownership


def test_of_a_cluster_it_shows_its_part_and_who_is_away(tmp_path: Path) -> None:
    logs = open_manager(tmp_path)
    ownership = in_cluster(logs)
    stored = {"near": {("flights", 0): 1, ("flights", 2): 0}, "far": {("flights", 1): 0}, "none": {}}
    now = snapshots(logs, Groups(stored), Registered(ownership)).take()
    assert now.broker == 1
    assert now.brokers == (
        BrokerStatus(1, "here", 9092, 2),
        BrokerStatus(2, "there", 9093, 1),
        BrokerStatus(3, "", -1, 1, is_live=False),
    )
    (flights,) = now.topics
    assert (flights.partition_count, flights.offline_count) == (4, 0)
    assert [(p.number, p.leader, p.start, p.end) for p in flights.partitions] == [(0, 1, 0, 2), (2, 1, 0, 2)]
    assert {group.name: group.lag for group in now.groups} == {"near": 3, "far": None, "none": None}
    assert now.problems == ()


def test_a_partition_that_it_made_and_does_not_have_is_offline(tmp_path: Path) -> None:
    logs = open_manager(tmp_path)
    ownership = in_cluster(logs)
    ownership.set_offline([TopicPartition("gone", 0)])
    flights, gone = snapshots(logs, Groups(), Registered(ownership)).take().topics
    assert (gone.name, gone.partitions) == ("gone", (PartitionStatus(0, -1),))
    assert flights.offline_count == 0


def test_a_broker_whose_id_was_taken_is_not_healthy_and_serves_nothing(tmp_path: Path) -> None:
    logs = open_manager(tmp_path)
    ownership = in_cluster(logs)
    other = BrokerNode(1, "rival", 9092, 0)
    in_use = BrokerIdInUse(BrokerNode(1, "here", 9092, 0), other, "/brokers/ids/1")
    ownership.refuse(str(in_use))
    taken = snapshots(logs, Groups(), Registered(ownership, problem=in_use))
    assert taken.health() == str(in_use)
    now = taken.take()
    assert now.problems[0] == str(in_use)
    assert "in use by rival:9092" in now.problems[0]
    (flights,) = now.topics
    assert flights.offline_count == 2


@pytest.mark.parametrize("registered", [True, False])
def test_without_zookeeper_it_is_healthy_and_says_what_it_cannot_do(tmp_path: Path, registered: bool) -> None:
    logs = open_manager(tmp_path)
    away = Registered(in_cluster(logs), connected=False)
    if not registered:
        away.problem = ConnectionLost("no answer")
    status = snapshots(logs, Groups(), away)
    assert status.health() is None
    assert status.take().problems == (
        "ZooKeeper does not answer: this broker goes on serving its partitions, but topics cannot be changed",
    )


def test_a_process_that_was_stopped_is_healthy_again_once_it_knows_what_it_owns(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    pulse = Pulse(3.0, clock)
    stopped = snapshots(logs := open_manager(tmp_path), Groups(), Registered(in_cluster(logs, pulse)))
    assert stopped.health() is None
    clock.advance(3.1)
    said = "this broker was stopped for a while and has not yet seen again what it owns"
    assert (stopped.health(), stopped.take().problems) == (said, (said,))
    pulse.caught_up(pulse.beat())
    assert stopped.health() is None


def test_what_keeps_it_from_being_registered_is_a_problem(tmp_path: Path) -> None:
    logs = open_manager(tmp_path)
    status = snapshots(logs, Groups(), Registered(in_cluster(logs), problem=KafkaError("no such acl")))
    assert status.health() is None
    assert status.take().problems == ("not registered in ZooKeeper, trying again: no such acl",)


def test_a_directory_that_failed_is_not_healthy(tmp_path: Path) -> None:
    files = FaultyFiles()
    logs = open_manager(tmp_path, files=files)
    logs.create_topic("t", uuid4(), 1)
    logs.log(TopicPartition("t", 0)).append(batch(b"x"))
    alone = snapshots(logs, Groups(), None)
    assert (alone.health(), alone.take().broker) == (None, None)
    files.sync_fails = lambda path: True
    with pytest.raises(KafkaError):
        logs.log(TopicPartition("t", 0)).flush()
    assert alone.health() == f"{tmp_path} is offline; see the broker's log"
    now = alone.take()
    assert now.problems == (f"{tmp_path} is offline; see the broker's log",)
    assert now.topics[0].partitions == (PartitionStatus(0, -1),)
