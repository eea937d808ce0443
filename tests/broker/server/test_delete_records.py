from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions
from tests.support.protocol.raw_groups import commit


def asked(client: RawClient, topic: str, *wanted: tuple[int, int], version: int = 2) -> list[tuple[int, int]]:
    """Low watermark and error code for each (partition, offset)."""
    partitions = tuple(DeleteRecordsPartition(partition, offset) for partition, offset in wanted)
    request = DeleteRecordsRequest(topics=(DeleteRecordsTopic(topic, partitions),), timeout_ms=1000)
    (answer,) = client.ask(request, version).topics
    assert answer.name == topic
    assert [p.partition_index for p in answer.partitions] == [partition for partition, _ in wanted]
    return [(p.low_watermark, int(p.error_code)) for p in answer.partitions]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_a_partition_begins_where_the_answer_says(client: RawClient, topic: str, version: int) -> None:
    client.produce(topic, batch(b"0", b"1", b"2", b"3"))
    assert asked(client, topic, (0, 3), version=version) == [(3, 0)]
    assert asked(client, topic, (0, 2), version=version) == [(3, 0)]
    assert client.offset_at(topic, -2).offset == 3
    assert [record.value for record in client.read(topic, 3)] == [b"3"]
    data = client.fetch(topic, 2)
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)
    assert asked(client, topic, (0, -1), version=version) == [(4, 0)]
    assert [client.offset_at(topic, at).offset for at in (-2, -1)] == [4, 4]
    assert client.produce(topic, batch(b"4")).log_start_offset == 4


def test_one_bad_partition_does_not_fail_the_others(client: RawClient, topic: str) -> None:
    client.produce(topic, batch(b"0", b"1"))
    assert asked(client, topic, (9, 0), (0, 3), (0, -2), (0, 1)) == [
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, 0),
    ]


def test_topics_that_are_only_compacted_keep_their_records(client: RawClient) -> None:
    client.create_topic("compacted", configs={"cleanup.policy": "compact"})
    client.create_topic("compacted-too", configs={"cleanup.policy": "compact,delete"})
    assert asked(client, "compacted", (0, 0)) == [(-1, ErrorCode.POLICY_VIOLATION)]
    assert asked(client, "compacted-too", (0, 0)) == [(0, 0)]


def test_internal_topics_keep_their_records(client: RawClient, topic: str) -> None:
    assert commit(client, "g", topic, 1) == ErrorCode.NONE
    assert asked(client, "__consumer_offsets", (0, -1)) == [(-1, ErrorCode.INVALID_TOPIC_EXCEPTION)]


def test_a_topic_of_kafka_07_keeps_its_records(client: RawClient) -> None:
    client.create_topic("of-07", configs={"generation": "0.7"})
    assert asked(client, "of-07", (0, -1)) == [(-1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)]
