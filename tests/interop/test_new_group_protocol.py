"""Members of groups of the newer protocol (KIP-848): librdkafka with ``group.protocol=consumer``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.foreign.foreign_clients import CLIENTS

SECONDS = 90.0
PARTITIONS = 4
QUICK = {
    "auto.create.topics.enable": False,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 90_000,
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker(QUICK) as running:
        yield running


def consumer(broker: EmbeddedBroker, **more: Any) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


def poll_until(consumers: list[Any], done: Callable[[], bool]) -> None:
    """Poll all until ``done``, which must come in time."""
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, [assigned(c) for c in consumers]
        for each in consumers:
            message = each.poll(0.02)
            assert message is None or message.error() is None, message.error()


def assigned(consumer: Any) -> list[tuple[str, int]]:
    return sorted((p.topic, p.partition) for p in consumer.assignment())


def commit(consumer: Any) -> None:
    """Once the member is at its group's epoch: on a busy machine it may have to come back to it first."""
    from confluent_kafka import KafkaError, KafkaException

    deadline = time.monotonic() + SECONDS
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException as e:
            if e.args[0].code() != KafkaError.STALE_MEMBER_EPOCH or time.monotonic() > deadline:
                raise
        consumer.poll(0.1)


def sizes(*consumers: Any) -> list[int]:
    return sorted(len(assigned(c)) for c in consumers)


def fill(broker: EmbeddedBroker, topic: str, first: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(first, first + count):
        producer.produce(topic, str(n).encode(), partition=n % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def test_members_share_the_partitions_when_one_joins_or_leaves(broker: EmbeddedBroker) -> None:
    CLIENTS[0].create_topic(broker.bootstrap_servers, "t", PARTITIONS)
    one, two, three = consumer(broker), consumer(broker), consumer(broker, group_remote_assignor="range")
    everything = [("t", p) for p in range(PARTITIONS)]
    one.subscribe(["t"])
    poll_until([one], lambda: assigned(one) == everything)
    two.subscribe(["t"])
    poll_until([one, two], lambda: sizes(one, two) == [2, 2])
    assert sorted(assigned(one) + assigned(two)) == everything
    three.subscribe(["t"])
    poll_until([one, two, three], lambda: sizes(one, two, three) == [1, 1, 2])
    assert sorted(assigned(one) + assigned(two) + assigned(three)) == everything
    three.close()
    poll_until([one, two], lambda: sizes(one, two) == [2, 2])
    one.close()
    poll_until([two], lambda: assigned(two) == everything)
    two.close()


@pytest.mark.long("every client with every other")
def test_members_and_offsets_survive_a_restart_and_a_change_of_protocol(broker: EmbeddedBroker) -> None:
    from confluent_kafka import ConsumerGroupState, ConsumerGroupType
    from confluent_kafka.admin import AdminClient

    CLIENTS[0].create_topic(broker.bootstrap_servers, "t", PARTITIONS)
    one, two = consumer(broker), consumer(broker)
    one.subscribe(["t"])
    two.subscribe(["t"])
    poll_until([one, two], lambda: sizes(one, two) == [2, 2])
    shares = assigned(one), assigned(two)
    fill(broker, "t", 0, 40)
    assert read([one, two], 40) == set(range(40))
    for each in (one, two):
        each.commit(asynchronous=False)

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (listed,) = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(SECONDS).valid
    assert (listed.group_id, listed.state) == ("g", ConsumerGroupState.STABLE)
    described = admin.describe_consumer_groups(["g"])["g"].result(SECONDS)
    assert (described.type, described.partition_assignor) == (ConsumerGroupType.CONSUMER, "uniform")
    held = [sorted((p.topic, p.partition) for p in m.assignment.topic_partitions) for m in described.members]
    assert sorted(held) == sorted(shares)

    broker.kill()
    broker.restart()
    fill(broker, "t", 40, 40)
    assert read([one, two], 40) == set(range(40, 80))
    # A member that a busy machine has held up may have come back to the other's half.
    assert sorted([assigned(one), assigned(two)]) == sorted(shares)
    for each in (one, two):
        commit(each)
        each.close()

    fill(broker, "t", 80, 4)
    for protocol, first in (("classic", 80), ("consumer", 84)):
        after = consumer(broker, group_protocol=protocol)
        after.subscribe(["t"])
        assert read([after], 4) == set(range(first, first + 4))
        after.commit(asynchronous=False)
        after.close()
        fill(broker, "t", 84, 4)


def test_a_regular_expression_follows_new_topics(broker: EmbeddedBroker) -> None:
    CLIENTS[0].create_topic(broker.bootstrap_servers, "t-1", 2)
    CLIENTS[0].create_topic(broker.bootstrap_servers, "other", 2)
    one = consumer(broker)
    one.subscribe(["^t-.*"])
    poll_until([one], lambda: assigned(one) == [("t-1", 0), ("t-1", 1)])
    CLIENTS[0].create_topic(broker.bootstrap_servers, "t-2", 1)
    poll_until([one], lambda: assigned(one) == [("t-1", 0), ("t-1", 1), ("t-2", 0)])
    one.close()


def read(consumers: list[Any], count: int) -> set[int]:
    """The numbers in the next ``count`` messages; no message may come twice."""
    found: list[int] = []
    end = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < end, found
        for each in consumers:
            message = each.poll(0.02)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_is_upgraded_member_by_member_and_downgraded_again(
    broker: EmbeddedBroker, strategy: str
) -> None:
    """Kafka 4.1 refuses cooperative-sticky too, as librdkafka adds user data to its assignments."""
    from confluent_kafka import ConsumerGroupType
    from confluent_kafka.admin import AdminClient

    CLIENTS[0].create_topic(broker.bootstrap_servers, "t", PARTITIONS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    members: list[Any] = []
    every = [("t", partition) for partition in range(PARTITIONS)]

    def joins(protocol: str) -> None:
        settings: dict[str, Any] = {"group_protocol": protocol}
        if protocol == "classic":
            settings |= {
                "partition_assignment_strategy": strategy,
                "heartbeat_interval_ms": 100,
                "session_timeout_ms": 90_000,
            }
        members.append(consumer(broker, **settings))
        members[-1].subscribe(["t"])
        settled()

    def leaves() -> None:
        members.pop(0).close()
        settled()

    def settled() -> None:
        def done() -> bool:
            held = [assigned(each) for each in members]
            return sorted(p for each in held for p in each) == every and all(held)

        poll_until(members, done)

    def kind() -> Any:
        (found,) = admin.list_consumer_groups().result(SECONDS).valid
        return found.type

    joins("classic")
    joins("classic")
    assert kind() == ConsumerGroupType.CLASSIC
    for protocol, then in (("consumer", ConsumerGroupType.CONSUMER), ("classic", ConsumerGroupType.CLASSIC)):
        for _ in range(2):
            joins(protocol)
            assert kind() == ConsumerGroupType.CONSUMER
            leaves()
        assert kind() == then
    for each in members:
        each.close()
