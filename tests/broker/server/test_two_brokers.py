"""Two brokers under one ZooKeeper on today's wire: no partition is ever served by both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pyspark_kafkalog.protocol.api.delete_topics import DeleteTopicsRequest
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.registries import partitions
from pyspark_kafkalog.zookeeper.session import Session
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.wire07 import Wire07, entry, fetch, produce
from tests.support.zookeeper import until

JSON = JsonLayout()


class Two:
    """Brokers 1 and 2, each with one client."""

    def __init__(self, place: str, directory: Path) -> None:
        self._own = {"zookeeper.connect": place, "zookeeper.session.timeout.ms": 4000}
        self._directory = directory
        self.brokers: dict[int, EmbeddedBroker] = {}
        self.clients: dict[int, RawClient] = {}

    def start(self, number: int) -> RawClient:
        listeners = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
        self.brokers[number] = start_broker(
            self._own | {"node.id": number, "listeners": listeners},
            data_dir=self._directory / str(number),
        )
        self.clients[number] = RawClient(self.brokers[number].port_of("PLAINTEXT"))
        return self.clients[number]

    def stop(self, number: int) -> None:
        self.clients.pop(number).close()
        self.brokers.pop(number).stop()

    def describe(self, number: int, topic: str) -> MetadataResponseTopic:
        """What a broker says of a topic; asking for it makes it where nobody has it."""
        (told,) = self.clients[number].ask(MetadataRequest(topics=(MetadataRequestTopic(name=topic),))).topics
        return told


@pytest.fixture
def two(zookeeper_connect: str, tmp_path: Path) -> Iterator[Two]:
    running = Two(zookeeper_connect, tmp_path)
    running.start(1)
    running.start(2)
    yield running
    for number in list(running.brokers):
        running.stop(number)


def test_of_two_brokers_asked_at_once_one_makes_the_topic_and_no_record_is_lost(two: Two) -> None:
    for round_ in range(5):
        topic = f"raced-{round_}"
        acknowledged: dict[int, list[bytes]] = {1: [], 2: []}
        ready = threading.Barrier(2)

        def work(
            number: int, topic: str = topic, mine: dict[int, list[bytes]] = acknowledged,
            ready: threading.Barrier = ready,
        ) -> None:  # fmt: skip
            ready.wait(30)
            two.describe(number, topic)
            for i in range(30):
                value = b"%d-%d" % (number, i)
                if two.clients[number].produce(topic, batch(value)).error_code == ErrorCode.NONE:
                    mine[number].append(value)

        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (owner,) = (number for number, values in acknowledged.items() if values)
        assert len(acknowledged[owner]) == 30
        assert [r.value for r in two.clients[owner].read(topic)] == acknowledged[owner]
        assert two.describe(3 - owner, topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_second_broker_says_who_has_the_topic_and_its_topics_of_07_are_its_own(two: Two) -> None:
    assert two.clients[1].create_topic("first", partitions=2).error_code == ErrorCode.NONE
    refused = two.clients[2].create_topic("first")
    assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert refused.error_message is not None
    assert "broker 1 has partition 0 of topic 'first' (/kafka/brokers/topics/first" in refused.error_message
    for number in (1, 2):
        with Wire07(two.brokers[number].port_of("KAFKA07")) as wire:
            wire.send(produce("old", 0, entry(b"of %d" % number)))
            assert wire.ask(fetch("old", 0, 0, 1000)) is not None
    assert two.clients[2].create_topic("second").error_code == ErrorCode.NONE
    deleted = two.clients[1].ask(DeleteTopicsRequest(topic_names=("first",), timeout_ms=5000), 5)
    assert deleted.responses[0].error_code == ErrorCode.NONE
    # It is free again, as soon as the first one has withdrawn it.
    until(lambda: two.clients[2].create_topic("first").error_code == ErrorCode.NONE)


def test_a_partition_that_both_have_is_served_by_who_was_there_first(
    two: Two, zookeeper_connect: str
) -> None:
    two.stop(1)
    client = two.clients[2]
    assert client.create_topic("both", partitions=2).error_code == ErrorCode.NONE
    assert client.produce("both", batch(b"of 2")).error_code == ErrorCode.NONE
    two.stop(2)
    client = two.start(1)
    # Nobody has registered it now.
    assert client.create_topic("both", partitions=1).error_code == ErrorCode.NONE
    assert client.produce("both", batch(b"of 1")).error_code == ErrorCode.NONE
    late = two.start(2)
    for refused in (late.produce("both", batch(b"more")), late.fetch("both", 0), late.offset_at("both", -1)):
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = {p.partition_index: (p.error_code, p.leader_id) for p in two.describe(2, "both").partitions}
    assert told == {0: (ErrorCode.LEADER_NOT_AVAILABLE, -1), 1: (ErrorCode.NONE, 2)}
    assert late.produce("both", batch(b"more"), 1).error_code == ErrorCode.NONE
    with Session(zookeeper_connect) as session:
        assert [(p.name, p.broker) for p in partitions(session, JSON, "both")] == [("0", 1), ("1", 2)]
    widened = client.ask(
        CreatePartitionsRequest(topics=(CreatePartitionsTopic(name="both", count=2),), timeout_ms=5000)
    )
    assert widened.results[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert "broker 2 has partition 1" in widened.results[0].error_message
    assert [r.value for r in client.read("both")] == [b"of 1"]
    two.stop(1)
    # With the other one gone it serves what it has.
    until(lambda: late.produce("both", batch(b"after")).error_code == ErrorCode.NONE)
    assert [r.value for r in late.read("both")] == [b"of 2", b"after"]
