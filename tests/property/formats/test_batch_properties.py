"""The five properties of every codec, but for golden bytes, which tests/unit/formats/test_vectors.py has."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import (
    HEADER_SIZE,
    V2Format,
    decode_records,
    encode_batch,
    read_header,
)
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.formats.record import check_records, encode_record, parse_records
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.examples import examples
from tests.support.formats.batches import MAX_BYTES, codecs, new_records
from tests.support.formats.vectors import vectors

some_records = st.lists(new_records, min_size=1, max_size=12)
REAL = [v.data for v in vectors("v2-", "fetch-")]


def written(found: list[Record]) -> list[NewRecord]:
    return [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in found]


@given(some_records, codecs, st.integers(0, 1 << 62), st.integers(-1, 1 << 40), st.booleans())
def test_what_is_encoded_is_decoded(new, codec, base_offset, producer_id, transactional) -> None:
    data = encode_batch(
        new, codec=codec, base_offset=base_offset, producer_id=producer_id, transactional=transactional
    )
    header = read_header(data)
    found = decode_records(data, 0, header, MAX_BYTES)
    assert written(found) == new
    assert [r.offset for r in found] == list(range(base_offset, base_offset + len(new)))
    assert header.size == len(data)
    assert (header.codec, header.producer_id, header.is_transactional) == (codec, producer_id, transactional)
    assert header.max_timestamp == max(r.timestamp for r in new)


@given(some_records, codecs, st.integers(0, 1 << 40))
def test_log_append_time_stands_forevery_record_s_own(new, codec, base_offset) -> None:
    data = encode_batch(new, codec=codec, timestamp_type=TimestampType.LOG_APPEND_TIME)
    times = {r.timestamp for r in decode_records(data, 0, read_header(data), MAX_BYTES)}
    assert times == {max(r.timestamp for r in new)}


@given(some_records, codecs, st.data())
def test_gaps_come_back_and_lead_on(new, codec, data) -> None:
    deltas = sorted(data.draw(st.sets(st.integers(0, 1 << 20), min_size=len(new), max_size=len(new))))
    last = deltas[-1] + data.draw(st.integers(0, 1 << 20))
    batch = encode_batch(new, codec=codec, base_offset=77, offset_deltas=deltas, last_offset_delta=last)
    found = decode_records(batch, 0, read_header(batch), MAX_BYTES)
    assert [r.offset - 77 for r in found] == deltas
    assert all(a.next_offset <= b.offset for a, b in pairwise(found))
    assert found[-1].next_offset == read_header(batch).next_offset == 77 + last + 1


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches as they follow each other in a log: some with gaps, some emptied by compaction."""
    offset, parts = draw(st.integers(0, 1 << 40)), []
    for new in draw(st.lists(st.lists(new_records, max_size=4), max_size=5)):
        last = max(len(new) - 1, 0) + draw(st.integers(0, 3))
        parts.append(encode_batch(new, codec=draw(codecs), base_offset=offset, last_offset_delta=last))
        offset += last + 1
    return b"".join(parts)


@given(logs(), st.data())
def test_cut_at_any_byte_the_longest_whole_prefix_is_read(log, data) -> None:
    whole = list(frames(log))
    end = data.draw(st.integers(0, len(log)))
    cut = log[:end]
    assert list(frames(cut)) == [f for f in whole if f.end <= end]
    kept = sum(f.size for f in whole if f.end <= end)
    assert list(records(cut, start_offset=0, max_bytes=MAX_BYTES)) == list(
        records(log[:kept], start_offset=0, max_bytes=MAX_BYTES)
    )


@given(logs())
def test_the_next_offset_of_one_is_where_the_next_begins(log) -> None:
    whole = list(frames(log))
    assert all(a.next_offset == b.first_offset for a, b in pairwise(whole))
    for frame in whole:
        found = decode_records(log, frame.position, read_header(log, frame.position), MAX_BYTES)
        assert all(a.next_offset == b.offset for a, b in pairwise(found))
        assert not found or found[-1].next_offset == frame.next_offset


@given(logs(), st.data())
def test_reading_from_any_offset_is_the_end_of_reading_it_all(log, data) -> None:
    everything = list(records(log, start_offset=0, max_bytes=MAX_BYTES))
    offsets = [r.offset for r in everything] or [0]
    start = data.draw(st.integers(max(offsets[0] - 2, 0), offsets[-1] + 2))
    assert list(records(log, start_offset=start, max_bytes=MAX_BYTES)) == [
        r for r in everything if r.offset >= start
    ]


@given(logs())
def test_times_are_those_of_the_records(log) -> None:
    for frame in frames(log):
        found = decode_records(log, frame.position, read_header(log, frame.position), MAX_BYTES)
        times = list(V2Format().times(memoryview(log), frame, max_bytes=MAX_BYTES))
        assert times == [(r.timestamp, r.offset) for r in found]


def only_kafka_errors(data: bytes) -> None:
    """Read ``data`` every way there is; whatever is wrong with it must be said with a `KafkaError`."""
    for check_crc in (True, False):
        try:
            for frame in frames(data):
                header = read_header(data, frame.position)
                decode_records(data, frame.position, header, 1 << 16, check_crc=check_crc)
        except KafkaError:
            pass
    try:
        for frame in frames(data):
            for timestamp, offset in V2Format().times(memoryview(data), frame, max_bytes=1 << 16):
                struct.pack(">qq", timestamp, offset)  # what an answer must be able to hold
    except KafkaError:
        pass


@given(st.binary(max_size=300))
def test_garbage_raises_only_kafka_errors(data) -> None:
    only_kafka_errors(data)


@given(st.integers(0, 255), st.integers(0, 40), st.integers(0, 40), st.binary(max_size=200))
@examples(300)
def test_garbage_after_a_sound_header_raises_only_kafka_errors(attributes, count, last, block) -> None:
    data = bytearray(encode_batch([], last_offset_delta=last))
    struct.pack_into(">i", data, 8, HEADER_SIZE - 12 + len(block))
    struct.pack_into(">h", data, 21, attributes)
    struct.pack_into(">i", data, 57, count)
    data += block
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    only_kafka_errors(bytes(data))


@given(st.sampled_from(REAL), st.data())
@examples(300)
def test_real_batches_with_damage_raise_only_kafka_errors(real, data) -> None:
    damaged = bytearray(real)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    only_kafka_errors(bytes(damaged))
    # And once more under a checksum that holds, so that the damage reaches the codecs and the records.
    for frame in _frames_or_none(bytes(damaged)):
        struct.pack_into(">I", damaged, frame.position + 17, crc32c(damaged[frame.position + 21 : frame.end]))
    only_kafka_errors(bytes(damaged))


def _frames_or_none(data: bytes):
    try:
        return list(frames(data))
    except KafkaError:
        return []


def _checked_as_read(block: bytes, count: int) -> bool:
    """Whether a broker accepts these records, which it must exactly if a reader finds them."""
    try:
        found = parse_records(block, count, base_offset=0, last_offset_delta=count - 1, base_timestamp=0)
    except KafkaError:
        found = []
    try:
        check_records(block, 0, len(block), count, count, len(block), numbered=True, keyed=False)
    except KafkaError:
        assert found == []
        return False
    assert [record.offset for record in found] == list(range(count))
    return True


@examples(400)
@given(
    st.lists(new_records, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    st.sampled_from([0, 0, 1, -1]),
)
def test_what_a_broker_checks_is_what_readers_read(new, changes, more) -> None:
    """A block of records with a few other bytes is accepted exactly if a reader finds its records in it."""
    block = bytearray(b"".join(encode_record(record, record.timestamp, i) for i, record in enumerate(new)))
    for position, byte in changes:
        block[position % len(block)] = byte
    _checked_as_read(bytes(block), max(1, len(new) + more))


@pytest.mark.parametrize(
    "new",
    [
        NewRecord(b"", b"k", timestamp=1),
        NewRecord(bytes(70), None, timestamp=100),
        NewRecord(b"v", None, headers=(("h", b"\0"),)),
    ],
    ids=["short", "long", "headers"],
)
def test_neighbours_of_equal_lengths_are_checked_as_well(new) -> None:
    """They are compared with each other. No byte of one may be wrong; offset 64 is the first of two bytes."""
    records = [encode_record(new, 0, i) for i in range(130)]
    good = b"".join(records)
    assert _checked_as_read(good, 130)
    for number in (15, 16, 40, 63, 64, 80, 129):
        start = len(b"".join(records[:number]))
        for position in range(start, start + len(records[number])):
            for byte in (0, good[position] ^ 1, good[position] + 2 & 255, good[position] ^ 128):
                _checked_as_read(good[:position] + bytes([byte]) + good[position + 1 :], 130)
    assert not _checked_as_read(good, 131)
    assert not _checked_as_read(good[:-1], 130)
