"""Groups as the admin interfaces of foreign clients see them: listed, described, with their offsets."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import WAIT_SECONDS


@pytest.fixture
def group(servers: str, topic_name: str) -> str:
    """A group that has committed 42 and 7 for two partitions of a topic of the same name."""
    client = CLIENTS[0]
    client.create_topic(servers, topic_name, 2)
    client.commit(servers, topic_name, topic_name, 0, 42)
    client.commit(servers, topic_name, topic_name, 1, 7)
    return topic_name


def test_librdkafka_lists_and_describes_it(servers: str, group: str) -> None:
    from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_consumer_groups().result(WAIT_SECONDS)
    assert listed.errors == []
    assert {(g.group_id, g.is_simple_consumer_group, g.state) for g in listed.valid} >= {
        (group, True, ConsumerGroupState.EMPTY)
    }
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(WAIT_SECONDS)
    assert (stable.valid, stable.errors) == ([], [])

    described = admin.describe_consumer_groups([group, "no-such-group"])
    found = described[group].result(WAIT_SECONDS)
    assert (found.state, found.is_simple_consumer_group, found.members) == (
        ConsumerGroupState.EMPTY,
        True,
        [],
    )
    assert found.coordinator.id == 0
    assert described["no-such-group"].result(WAIT_SECONDS).state == ConsumerGroupState.DEAD

    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    offsets = asked.result(WAIT_SECONDS).topic_partitions
    assert [(p.topic, p.partition, p.offset) for p in offsets] == [(group, 0, 42), (group, 1, 7)]


def test_kafka_python_lists_and_describes_it(servers: str, group: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        listed = {g["group_id"]: g for g in admin.list_groups()}
        assert (listed[group]["protocol_type"], listed[group]["group_state"]) == ("", "Empty")
        described = admin.describe_groups([group])
        assert (described[group]["group_state"], described[group]["members"]) == ("Empty", [])
        offsets = admin.list_group_offsets(group)[group]
        assert {tp: o.offset for tp, o in offsets.items()} == {
            TopicPartition(group, 0): 42,
            TopicPartition(group, 1): 7,
        }
    finally:
        admin.close()


def test_aiokafka_lists_and_describes_it(servers: str, group: str) -> None:
    async def run() -> None:
        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            assert (group, "") in await admin.list_consumer_groups()
            (described,) = await admin.describe_consumer_groups([group])
            assert described.groups[0][:3] == (0, group, "Empty")
            offsets = await admin.list_consumer_group_offsets(group)
            assert {tp: o.offset for tp, o in offsets.items()} == {
                TopicPartition(group, 0): 42,
                TopicPartition(group, 1): 7,
            }
        finally:
            await admin.close()

    asyncio.run(run())
