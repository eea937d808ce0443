"""Groups with members of ours and of foreign clients: each leads once, and reads what the leader gave it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pytest

from pyspark_kafkalog import Consumer
from tests.support.client.consumer_cases import new_topic, produce
from tests.support.foreign.kafka_python_member import KafkaPythonMember

_SECONDS = 90.0


class Member(Protocol):
    def poll(self) -> list[bytes]: ...
    def held(self) -> list[int]: ...
    def close(self) -> None: ...


class Ours:
    def __init__(self, servers: str, topic: str, strategy: str) -> None:
        config = {
            "bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200, "session.timeout.ms": 90_000,
            "fetch.max.wait.ms": 50, "partition.assignment.strategy": strategy,
        }  # fmt: skip
        self._consumer = Consumer(config)
        self._consumer.subscribe(topic)
        self.close = self._consumer.close

    def poll(self) -> list[bytes]:
        return [record.value or b"" for record in self._consumer.poll(0.05)]

    def held(self) -> list[int]:
        return sorted(tp.partition for tp in self._consumer.assignment)


class Librdkafka:
    def __init__(self, servers: str, topic: str, strategy: str) -> None:
        import confluent_kafka

        config = {
            "bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200, "session.timeout.ms": 90_000,
            "fetch.wait.max.ms": 50, "partition.assignment.strategy": strategy,
        }  # fmt: skip
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe([topic])
        self.close = self._consumer.close

    def poll(self) -> list[bytes]:
        found = self._consumer.consume(100, 0.05)
        assert not any(message.error() for message in found)
        return [message.value() for message in found]

    def held(self) -> list[int]:
        return sorted(tp.partition for tp in self._consumer.assignment())


class KafkaPython(KafkaPythonMember):
    def __init__(self, servers: str, topic: str, strategy: str) -> None:
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        super().__init__(
            topic,
            bootstrap_servers=servers,
            group_id=topic,
            auto_offset_reset="earliest",
            session_timeout_ms=90_000,
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=[assignors[strategy]],
        )


Make = Callable[[str, str, str], Member]


_PAIRS = [
    (Librdkafka, "range"),
    (Librdkafka, "roundrobin"),
    (Librdkafka, "cooperative-sticky"),
    (KafkaPython, "range"),
    (KafkaPython, "sticky"),
    (KafkaPython, "cooperative-sticky"),
]


@pytest.mark.long("every client with every other")
@pytest.mark.parametrize("ours_leads", [True, False])
@pytest.mark.parametrize(("theirs", "strategy"), _PAIRS)
def test_a_foreign_member_shares_with_ours(
    servers: str, theirs: Make, strategy: str, ours_leads: bool
) -> None:
    topic = new_topic(servers)
    members: list[Member] = []
    read: list[bytes] = []

    def drive(until: Callable[[], bool]) -> None:
        end = time.monotonic() + _SECONDS
        while not until():
            assert time.monotonic() < end, ([member.held() for member in members], len(read))
            for member in members:
                read.extend(member.poll())

    makes: list[Make] = [Ours, theirs] if ours_leads else [theirs, Ours]
    try:
        sent = produce(servers, topic, 20)
        members.append(makes[0](servers, topic, strategy))
        drive(lambda: members[0].held() == [0, 1, 2, 3] and len(read) >= 20)
        members.append(makes[1](servers, topic, strategy))
        drive(lambda: len(members[0].held()) == len(members[1].held()) == 2)
        assert sorted(members[0].held() + members[1].held()) == [0, 1, 2, 3]
        sent += produce(servers, topic, 20, first=20)
        drive(lambda: len(read) >= 40)
        members.pop(0).close()
        sent += produce(servers, topic, 20, first=40)
        drive(lambda: members[0].held() == [0, 1, 2, 3] and len(read) >= 60)
        assert sorted(read) == sorted(sent)
    finally:
        for member in members:
            member.close()
