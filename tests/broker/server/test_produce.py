"""Produce in all its versions: batches of today, and sets as clients of Kafka 0.8 to 0.10 send them."""

from __future__ import annotations

import itertools
import struct
import zlib

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
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


def test_acks_0_has_no_answer_and_the_connection_continues(client: RawClient, topic: str) -> None:
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


@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_records_without_a_key_are_blamed_and_no_others(
    client: RawClient, topic_name: str, version: int
) -> None:
    client.create_topic(topic_name, configs={"cleanup.policy": "compact"})
    data = encode_batch([NewRecord(b"v", key, NOW_MS) for key in (b"k0", None, None, b"k3")])
    result = client.produce(topic_name, data, version=version)
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [(each.batch_index, each.batch_index_error_message) for each in result.record_errors] == (
        [(index, "no key, which a compacted topic requires") for index in (1, 2)] if version >= 8 else []
    )


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


CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def old(magic: int, *values: bytes | None, codec: Codec = Codec.NONE, timestamp: int = NOW_MS) -> bytes:
    """A message set of these values, with keys and times as `batch` has them."""
    rows = [NewRecord(v, b"k%d" % i, timestamp + i) for i, v in enumerate(values)]
    return encode_set(rows, magic=magic, codec=codec)


def magics(client: RawClient, topic: str) -> list[int]:
    data = memoryview(client.fetch(topic, 0).records)
    return [magic_at(data, frame.position) for frame in frames(data)]


def seen(records: list[Record]) -> list[tuple[int, bytes | None, bytes | None, int]]:
    return [(r.offset, r.key, r.value, r.timestamp) for r in records]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize("configs", [{}, {"message.format.version": "producer"}], ids=["usual", "as sent"])
def test_a_set_is_appended_and_read_by_todays_clients(
    client: RawClient, topic_name: str, version: int, magic: int, codec: Codec, configs: dict[str, str]
) -> None:
    topic = topic_name
    client.create_topic(topic, configs=configs)
    first = client.produce(topic, old(magic, b"a", None, codec=codec), version=version)
    second = client.produce(topic, old(magic, b"c", codec=codec), version=version)
    assert (first.error_code, first.base_offset, first.log_append_time_ms) == (ErrorCode.NONE, 0, -1)
    assert (second.error_code, second.base_offset) == (ErrorCode.NONE, 2)
    times = [NOW_MS, NOW_MS + 1, NOW_MS] if magic else [-1] * 3
    assert seen(client.read(topic)) == [
        (0, b"k0", b"a", times[0]), (1, b"k1", None, times[1]), (2, b"k0", b"c", times[2]),
    ]  # fmt: skip
    assert set(magics(client, topic)) == {magic if configs else 2}


def test_one_request_may_hold_several_partitions_of_which_some_are_refused(
    client: RawClient, topic: str
) -> None:
    sets = {(topic, 0): old(0, b"a"), (topic, 9): old(0, b"b"), (topic, 1): old(0, b"c")[:-1] + b"\x00"}
    answers = [t.partition_responses[0] for t in client.ask(produce_request(sets), 0).responses]
    assert [a.error_code for a in answers] == [0, 3, 2]
    assert [a.base_offset for a in answers] == [0, -1, -1]


@pytest.mark.parametrize("data", [None, b""])
def test_an_empty_set_is_taken_and_appends_nothing(client: RawClient, topic: str, data: bytes | None) -> None:
    answer = client.produce(topic, data, version=1)  # type: ignore[arg-type]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, -1)
    assert client.offset_at(topic, -1).offset == 0


def sealed(data: bytes) -> bytes:
    """One entry with the checksum that its bytes have now."""
    return data[:12] + struct.pack(">I", zlib.crc32(data[16:])) + data[16:]


V0, V1 = old(0, b"some value"), old(1, b"some value")
ZIPPED = old(1, b"some", b"values", codec=Codec.GZIP)


@pytest.mark.parametrize(
    ("data", "version", "code"),
    [
        (changed(V0, len(V0) - 1, 0), 0, ErrorCode.CORRUPT_MESSAGE),
        (changed(V1, len(V1) - 1, 0), 2, ErrorCode.CORRUPT_MESSAGE),
        (sealed(changed(V1, 17, 4)), 2, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (sealed(changed(ZIPPED, len(ZIPPED) - 1, 9)), 2, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x"), 2, ErrorCode.CORRUPT_MESSAGE),
        (old(1, b"x", timestamp=4_000_000_000_000), 2, ErrorCode.INVALID_TIMESTAMP),
        (old(0, b"x" * (2 << 20)), 0, ErrorCode.MESSAGE_TOO_LARGE),
        (old(0, b"x" * 50), 3, ErrorCode.INVALID_RECORD),
        (old(1, b"x" * 50), 11, ErrorCode.INVALID_RECORD),
    ],
    ids=itertools.count(),
)
def test_a_set_that_cannot_be_right_is_refused_whole(
    client: RawClient, topic: str, data: bytes, version: int, code: ErrorCode
) -> None:
    assert client.produce(topic, data, version=version).error_code == code
    assert client.read(topic) == []
    assert client.produce(topic, V0, version=0).base_offset == 0


def test_acks_0_has_no_answer_and_closes_the_connection_on_an_error(client: RawClient, topic: str) -> None:
    client.send(produce_request({(topic, 0): old(0, b"silent")}, acks=0), 0)
    client._waiting.clear()
    assert client.produce(topic, old(0, b"loud"), version=0).base_offset == 1
    client.send(produce_request({(topic, 0): b"\x00" * 26}, acks=0), 0)
    assert client.closed_by_broker()


def test_log_append_time_is_reported_in_version_2_and_kept(client: RawClient, topic_name: str) -> None:
    client.create_topic(topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    told = client.produce(topic_name, old(1, b"x", b"y", codec=Codec.GZIP), version=2).log_append_time_ms
    assert told > NOW_MS
    assert {(r.timestamp, r.timestamp_type) for r in client.read(topic_name)} == {
        (told, TimestampType.LOG_APPEND_TIME)
    }


def test_large_requests_of_old_versions_are_taken(client: RawClient, topic: str) -> None:
    sets = b"".join(old(0, b"x" * 1000) for _ in range(600))
    assert client.produce(topic, sets, version=0).error_code == ErrorCode.NONE
    assert client.offset_at(topic, -1).offset == 600
