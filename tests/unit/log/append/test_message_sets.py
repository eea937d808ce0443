"""Message sets of v0 and v1 in a log: what is let in, what stays as it came, what is numbered how."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.append import validation
from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
    CODECS,
    assign_entry,
    encode_message,
    inner_entries,
    inner_set,
    read_entry,
    wrap_set,
)
from pyspark_kafkalog.types import NewRecord, TimestampType
from tests.support.log.logs import START_MS, batch, contents, message_set, open_log, read_all, values
from tests.support.manual_clock import ManualClock

PACKED = CODECS[1:]


def stored(log: Any) -> bytes:
    return contents(log.read(log.start_offset, 1 << 20, at_least_one=True))


def inner_offsets(entry: bytes) -> list[int]:
    header = read_entry(entry)
    block = inner_set(memoryview(entry), 0, header, 1 << 20)
    return [inner.offset for _, inner in inner_entries(block, header)]


def sealed(entry: bytearray) -> bytearray:
    """The same with the checksum of what it says now."""
    entry[12:16] = zlib.crc32(memoryview(entry)[16:]).to_bytes(4, "big")
    return entry


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages_are_numbered_and_otherwise_left_alone(tmp_path: Path, magic: int) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    data = message_set(b"a", b"b", b"c", magic=magic)
    result = log.append(bytes(data))
    assert (result.base_offset, result.last_offset, result.record_count) == (1, 3, 3)
    assert (result.converted_count, result.converted_bytes) == (0, 0)
    size = len(data) // 3
    for number in range(3):
        assign_entry(data, number * size, offset=1 + number)
    assert stored(log)[-len(data) :] == data
    assert values(log) == [b"before", b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_set_of_v1_is_numbered_by_its_wrapper_alone(tmp_path: Path, codec: Codec) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    data = message_set(b"a", b"b", b"c", magic=1, codec=codec, timestamps=[START_MS, START_MS + 9, START_MS])
    result = log.append(bytes(data))
    assert (result.base_offset, result.last_offset, result.converted_count) == (1, 3, 0)
    assert stored(log)[-len(data) + 8 :] == data[8:]
    assert [(r.offset, r.next_offset, r.timestamp) for r in read_all(log)[1:]] == [
        (1, 2, START_MS), (2, 3, START_MS + 9), (3, 4, START_MS),
    ]  # fmt: skip


def test_a_wrapper_of_v1_gets_the_largest_of_its_times(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    times = [START_MS, START_MS + 50, START_MS + 7]
    data = message_set(b"a", b"b", b"c", magic=1, codec=Codec.GZIP, timestamps=times, inner_offsets=range(3))
    assert read_entry(data).timestamp == START_MS
    assert log.append(data).converted_count == 0
    assert read_entry(stored(log)).timestamp == START_MS + 50
    assert [record.timestamp for record in read_all(log)] == times
    assert log.offset_for_timestamp(START_MS + 1) == (START_MS + 50, 1)
    assert log.max_timestamp() == (START_MS + 50, 1)


@pytest.mark.parametrize("codec", PACKED)
def test_offsets_in_a_set_of_v0_are_absolute(tmp_path: Path, codec: Codec) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    result = log.append(message_set(b"a", b"b", magic=0, codec=codec))
    kept = stored(log)[-result.converted_bytes :]
    assert (result.base_offset, result.last_offset, result.converted_count) == (1, 2, 2)
    assert (read_entry(kept).offset, read_entry(kept).codec, inner_offsets(kept)) == (2, codec, [1, 2])
    assert [(r.offset, r.timestamp, r.value) for r in read_all(log)[1:]] == [(1, -1, b"a"), (2, -1, b"b")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_log_append_time_is_written_where_there_is_a_place_for_it(
    tmp_path: Path, magic: int, codec: Codec
) -> None:
    clock = ManualClock(START_MS + 500)
    _, log = open_log(tmp_path, clock=clock, message_timestamp_type="LogAppendTime")
    # A time far in the future: none that counts here.
    result = log.append(message_set(b"a", b"b", magic=magic, codec=codec, timestamps=[1, 1 << 60]))
    assert result.log_append_time_ms == START_MS + 500
    time, kind = (-1, TimestampType.CREATE_TIME)
    if magic:
        time, kind = START_MS + 500, TimestampType.LOG_APPEND_TIME
    assert [(r.timestamp, r.timestamp_type) for r in read_all(log)] == [(time, kind)] * 2
    assert log.max_timestamp() == ((time, 0) if magic else None)


def _nested() -> bytes:
    inner = wrap_set(bytes(message_set(b"a", magic=1)), magic=1, codec=Codec.GZIP, last_offset=0)
    return wrap_set(inner, magic=1, codec=Codec.GZIP, last_offset=0)


def _wrapping(block: bytes, magic: int = 1) -> bytearray:
    return bytearray(wrap_set(block, magic=magic, codec=Codec.GZIP, last_offset=0, timestamp=START_MS))


def _flipped(data: bytearray, at: int) -> bytearray:
    data[at] ^= 1
    return data


def _with_codec(number: int) -> bytearray:
    data = _wrapping(bytes(message_set(b"a", magic=1)))
    data[17] = number
    return sealed(data)


A1 = bytes(message_set(b"a", magic=1))
REFUSED: dict[str, tuple[bytes | bytearray, type[KafkaError]]] = {
    "checksum": (_flipped(message_set(b"a", magic=0), -1), CorruptMessage),
    "checksum of an inner one": (_wrapping(bytes(_flipped(bytearray(A1), -1))), CorruptMessage),
    "cut short": (message_set(b"abc", magic=0)[:-1], CorruptMessage),
    "cut short within the second header": (A1 + A1[:20], CorruptMessage),
    "nothing compressed": (_wrapping(b""), CorruptMessage),
    "half a message compressed": (_wrapping(A1[:-1]), CorruptMessage),
    "nonsense for a set": (_wrapping(b"x" * 100), CorruptMessage),
    "nested": (_nested(), CorruptMessage),
    "v0 in v1": (_wrapping(bytes(message_set(b"a", magic=0))), InvalidRecord),
    "v1 in v0": (_wrapping(A1, magic=0), InvalidRecord),
    "v0 behind v1": (A1 + message_set(b"a", magic=0), InvalidRecord),
    "v2 behind v1": (A1 + batch(b"a"), CorruptMessage),
    "v1 behind v2": (batch(b"a") + A1, CorruptMessage),
    "zstd": (_with_codec(4), UnsupportedCompression),
    "no codec": (_with_codec(7), UnsupportedCompression),
    "key longer than the message": (sealed(bytearray(A1[:29] + b"\x7f" + A1[30:])), CorruptMessage),
    "append time": (
        encode_message(
            NewRecord(b"a", None, START_MS), magic=1, timestamp_type=TimestampType.LOG_APPEND_TIME
        ),
        InvalidTimestamp,
    ),
    "too late": (message_set(b"a", magic=1, timestamps=[START_MS + 3_600_001]), InvalidTimestamp),
    "too late in a set": (
        message_set(b"a", b"b", magic=1, codec=Codec.GZIP, timestamps=[START_MS, START_MS + 3_600_001]),
        InvalidTimestamp,
    ),
    "too early": (message_set(b"a", magic=1, timestamps=[START_MS - 1001]), InvalidTimestamp),
    "too large": (message_set(b"a" * 2000, magic=1), MessageTooLarge),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_bad_message_refuses_the_request(tmp_path: Path, name: str) -> None:
    data, error = REFUSED[name]
    _, log = open_log(tmp_path, max_message_bytes=1000, message_timestamp_before_max_ms=1000)
    for sound in (b"", bytes(message_set(b"sound", magic=read_entry(data).magic)) if data[16] < 2 else b""):
        with pytest.raises(error) as refused:
            log.append(bytearray(sound + bytes(data)))
        assert type(refused.value) is error
    assert (log.end_offset, log.size_bytes) == (0, 0)


def test_all_that_one_request_decompresses_to_is_bounded(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    message = encode_message(NewRecord(bytes(MAX_DECOMPRESSED_BYTES // 3), None, START_MS), magic=1)
    one = wrap_set(message, magic=1, codec=Codec.GZIP, last_offset=0, timestamp=START_MS)
    assert log.append(bytearray(one * 2)).record_count == 2
    with pytest.raises(MessageTooLarge):
        log.append(bytearray(one * 3))
    assert log.end_offset == 2


def test_the_messages_of_one_request_are_bounded_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MOST_MESSAGES", 10)
    _, log = open_log(tmp_path)
    assert log.append(message_set(*[b"a"] * 10, magic=0)).record_count == 10
    for magic in (0, 1):
        three = message_set(*[b"a"] * 3, magic=magic, codec=Codec.GZIP)
        assert log.append(three * 3 + message_set(b"a", magic=magic)).record_count == 10
        for too_many in (
            message_set(*[b"a"] * 11, magic=magic),
            message_set(*[b"a"] * 11, magic=magic, codec=Codec.GZIP),
            three * 4,
            three * 3 + message_set(*[b"a"] * 2, magic=magic),
        ):
            with pytest.raises(MessageTooLarge, match="more than 10 messages"):
                log.append(too_many)
    assert log.end_offset == 30
    assert log.append(batch(*[b"a"] * 11, codec=Codec.GZIP)).record_count == 11


def test_a_set_that_grows_beyond_the_limit_with_its_offsets_is_refused(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    data = message_set(*(b"%d" % n for n in range(100)), magic=0, codec=Codec.GZIP, inner_offsets=[0] * 100)
    log.config = log.config.overridden({"max.message.bytes": str(len(data))})
    with pytest.raises(MessageTooLarge, match="with its offsets"):
        log.append(data)
    assert (log.end_offset, log.size_bytes) == (0, 0)
    log.append(batch(b"goes on"))
    assert values(log) == [b"goes on"]


@pytest.mark.parametrize("offsets", [[0, 0, 0], [1, 2, 3], [0, 2, 1], [5, 5, 9]])
def test_offsets_in_a_set_of_v1_that_do_not_count_from_0_are_rewritten(
    tmp_path: Path, offsets: list[int]
) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    data = message_set(b"a", b"b", b"c", magic=1, codec=Codec.LZ4, inner_offsets=offsets)
    result = log.append(data)
    (kept,) = [stored(log)[-result.converted_bytes :]]
    assert (result.last_offset, result.converted_count) == (3, 3)
    assert (read_entry(kept).offset, inner_offsets(kept)) == (3, [0, 1, 2])
    assert [(r.offset, r.value) for r in read_all(log)[1:]] == [(1, b"a"), (2, b"b"), (3, b"c")]
