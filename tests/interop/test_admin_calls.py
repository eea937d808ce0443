"""Admin interfaces of foreign clients delete records, and describe the cluster and its directories."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import WAIT_SECONDS, messages


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    """A topic of one partition with ten records."""
    CLIENTS[0].create_topic(servers, topic_name, 1)
    CLIENTS[0].produce(servers, topic_name, 0, messages(10), "none", idempotent=False)
    return topic_name


def test_librdkafka_deletes_records(servers: str, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": servers})

    def delete(offset: int) -> int:
        (done,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        return int(done.result(WAIT_SECONDS).low_watermark)

    assert delete(4) == 4
    (first,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
    assert first.result(WAIT_SECONDS).offset == 4
    with pytest.raises(KafkaException) as raised:
        delete(11)
    assert raised.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert delete(-1) == 10


def test_librdkafka_describes_the_cluster(servers: str) -> None:
    from confluent_kafka.admin import AclOperation, AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_cluster(include_authorized_operations=True).result(WAIT_SECONDS)
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [servers]
    assert (found.controller.id, AclOperation.DESCRIBE in found.authorized_operations) == (0, True)


def test_kafka_python_deletes_records_and_describes_directories(servers: str, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import OffsetOutOfRangeError

    admin = KafkaAdminClient(bootstrap_servers=servers)
    partition = TopicPartition(topic, 0)
    try:
        (described,) = admin.describe_log_dirs({topic: [0]})
        (directory,) = described["log_dirs"]
        (found,) = directory["topics"]
        assert (found["name"], found["partitions"][0]["partition_index"]) == (topic, 0)
        assert found["partitions"][0]["partition_size"] > 0
        assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
        with pytest.raises(OffsetOutOfRangeError):
            admin.delete_records({partition: 11})
        assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 10
        (described,) = admin.describe_log_dirs({topic: [0]})
        assert described["log_dirs"][0]["topics"][0]["partitions"][0]["partition_size"] == 0
        assert admin.describe_cluster()["controller_id"] == 0
    finally:
        admin.close()


def test_aiokafka_deletes_records(servers: str, topic: str) -> None:
    async def run() -> None:
        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            partition = TopicPartition(topic, 0)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=4)}) == {partition: 4}
        finally:
            await admin.close()

    asyncio.run(run())
