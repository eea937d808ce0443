"""Produce 0-2, as clients of Kafka 0.8 to 0.10 send it."""

from __future__ import annotations

import itertools
import struct
import zlib

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames, magic_at
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.protocol.raw_client import RawClient, batch, produce_request

NOW_MS = 1_700_000_000_000
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
def test_a_set_is_appended_and_read_by_todays_clients(
    client: RawClient, topic: str, version: int, magic: int, codec: Codec
) -> None:
    first = client.produce(topic, old(magic, b"a", None, codec=codec), version=version)
    second = client.produce(topic, old(magic, b"c", codec=codec), version=version)
    assert (first.error_code, first.base_offset, first.log_append_time_ms) == (ErrorCode.NONE, 0, -1)
    assert (second.error_code, second.base_offset) == (ErrorCode.NONE, 2)
    times = [NOW_MS, NOW_MS + 1, NOW_MS] if magic else [-1] * 3
    assert seen(client.read(topic)) == [
        (0, b"k0", b"a", times[0]), (1, b"k1", None, times[1]), (2, b"k0", b"c", times[2]),
    ]  # fmt: skip
    assert set(magics(client, topic)) == {magic}


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


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


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
