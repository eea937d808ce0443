from __future__ import annotations

import itertools
import struct

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord, TimestampType
from tests.support.protocol.raw_client import RawClient, batch, produce_request, versions

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE)[3:])
def test_a_batch_is_appended_in_every_version_that_takes_batches(
    client: RawClient, topic: str, version: int
) -> None:
    first = client.produce(topic, batch(b"a", b"b"), version=version)
    second = client.produce(topic, batch(b"c"), version=version)
    assert (first.error_code, first.base_offset, first.log_append_time_ms) == (ErrorCode.NONE, 0, -1)
    assert second.base_offset == 2
    assert first.log_start_offset == (0 if version >= 5 else -1)
    assert [(r.offset, r.value, r.timestamp) for r in client.read(topic)] == [
        (0, b"a", NOW_MS),
        (1, b"b", NOW_MS + 1),
        (2, b"c", NOW_MS),
    ]


def test_acks_0_has_no_answer_and_the_connection_goes_on(client: RawClient, topic: str) -> None:
    client.send(produce_request({(topic, 0): batch(b"silent")}, acks=0))
    client._waiting.clear()
    assert client.produce(topic, batch(b"loud")).base_offset == 1
    assert [r.value for r in client.read(topic)] == [b"silent", b"loud"]


def test_acks_0_closes_the_connection_on_an_error(client: RawClient, topic: str) -> None:
    client.send(produce_request({(topic, 0): batch(b"good"), (topic, 9): batch(b"bad")}, acks=0))
    assert client.closed_by_broker()


def test_other_acks_are_refused(client: RawClient, topic: str) -> None:
    result = client.produce(topic, batch(b"x"), acks=2)
    assert (result.error_code, result.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert client.read(topic) == []


def test_one_bad_partition_does_not_fail_the_others(client: RawClient, topic: str) -> None:
    response = client.ask(
        produce_request(
            {
                (topic, 7): batch(b"no such partition"),
                (topic, 0): batch(b"good"),
                ("never-made", 0): batch(b"no such topic"),
                (topic, 1): b"\x00" * 61,
            }
        )
    )
    results = [t.partition_responses[0] for t in response.responses]
    assert [r.error_code for r in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
    ]
    assert "never-made" in results[2].error_message
    assert [r.value for r in client.read(topic)] == [b"good"]


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


GOOD = batch(b"some value", b"another")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (changed(GOOD, len(GOOD) - 1, GOOD[-1] ^ 1), ErrorCode.CORRUPT_MESSAGE),
        (changed(GOOD, 16, 1), ErrorCode.INVALID_RECORD),
        (changed(GOOD, 8, 0x7F), ErrorCode.MESSAGE_TOO_LARGE),
        (
            encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=0),
            ErrorCode.INVALID_RECORD,
        ),
        (
            encode_batch(
                [NewRecord(b"x")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            ),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (encode_batch([NewRecord(b"x", timestamp=4_000_000_000_000)]), ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=itertools.count(),
)
def test_a_batch_that_cannot_be_right_is_refused_whole(
    client: RawClient, topic: str, data: bytes | None, code: ErrorCode
) -> None:
    assert client.produce(topic, data).error_code == code  # type: ignore[arg-type]
    assert client.read(topic) == []
    assert client.produce(topic, batch(b"next")).base_offset == 0


def test_a_batch_above_the_topics_limit_is_refused(client: RawClient, topic_name: str) -> None:
    client.create_topic(topic_name, configs={"max.message.bytes": "200"})
    assert client.produce(topic_name, batch(b"x" * 200)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic_name, batch(b"x" * 20)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)]
)
def test_zstd_needs_version_7(client: RawClient, topic: str, version: int, code: ErrorCode) -> None:
    assert client.produce(topic, batch(b"x", codec=Codec.ZSTD), version=version).error_code == code


def test_clients_cannot_write_to_the_offsets_topic(client: RawClient) -> None:
    result = client.produce("__consumer_offsets", batch(b"x"))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_log_append_time_is_reported_and_kept(client: RawClient, topic_name: str) -> None:
    client.create_topic(topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    result = client.produce(topic_name, batch(b"x"))
    assert result.log_append_time_ms > NOW_MS
    (record,) = client.read(topic_name)
    assert (record.timestamp, record.timestamp_type) == (
        result.log_append_time_ms,
        TimestampType.LOG_APPEND_TIME,
    )


def test_a_version_from_the_future_closes_the_connection(client: RawClient) -> None:
    body = struct.pack(">hhih", 0, 12, 77, -1) + b"\x00" * 8
    client.send_bytes(len(body).to_bytes(4, "big") + body)
    assert client.closed_by_broker()


def test_pipelined_requests_are_appended_and_answered_in_order(client: RawClient, topic: str) -> None:
    for i in range(200):
        client.send(produce_request({(topic, 0): batch(b"%d" % i)}))
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(200)]
    assert offsets == list(range(200))
    assert [r.value for r in client.read(topic)] == [b"%d" % i for i in range(200)]


def test_a_topic_is_not_made_by_producing_to_it(client: RawClient, topic_name: str) -> None:
    assert client.produce(topic_name, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
