"""The five of each codec, for message sets of v0 and v1 and for logs that mix them with batches v2."""

from __future__ import annotations

import zlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
    MAGIC_POSITION,
    LegacyFormat,
    encode_set,
    messages,
    read_entry,
    wrap_set,
)
from pyspark_kafkalog.formats.message_set import ENTRIES, frames, next_offset_after, records
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, Record
from tests.support.formats.message_sets import (
    MAX_BYTES,
    WrittenSet,
    codecs,
    magics,
    mixed_logs,
    plain_records,
    written_sets,
)

FORMAT = LegacyFormat()


def log_of(sets: list[WrittenSet]) -> bytes:
    return b"".join(s.data for s in sets)


def read(data: bytes, start_offset: int = 0) -> list[Record]:
    return list(records(data, start_offset=start_offset, max_bytes=MAX_BYTES))


@given(st.lists(plain_records), magics, codecs, st.integers(0, 1 << 62))
def test_what_is_written_is_read(new: list[NewRecord], magic: int, codec: Codec, base: int) -> None:
    data = encode_set(new, magic=magic, codec=codec, base_offset=base)
    found = read(data)
    assert [NewRecord(r.value, r.key, r.timestamp) for r in found] == [
        NewRecord(r.value, r.key, r.timestamp if magic else NO_TIMESTAMP) for r in new
    ]
    assert [r.offset for r in found] == list(range(base, base + len(new)))


@given(mixed_logs())
def test_a_log_of_all_formats_is_read_in_order(sets: list[WrittenSet]) -> None:
    assert read(log_of(sets)) == [record for s in sets for record in s.records]


@given(mixed_logs(), st.data())
def test_reading_from_an_offset_gives_what_lies_from_there_on(
    sets: list[WrittenSet], draw: st.DataObject
) -> None:
    expected = [record for s in sets for record in s.records]
    ends = (expected[0].offset, expected[-1].next_offset) if expected else (0, 0)
    start = draw.draw(st.integers(*ends))
    assert read(log_of(sets), start) == [record for record in expected if record.offset >= start]


@given(mixed_logs(), st.data())
def test_a_log_cut_anywhere_gives_its_longest_whole_prefix(
    sets: list[WrittenSet], draw: st.DataObject
) -> None:
    data = log_of(sets)
    cut = draw.draw(st.integers(0, len(data)))
    whole = [frame for frame in frames(data) if frame.end <= cut]
    assert list(frames(data[:cut])) == whole
    assert read(data[:cut]) == read(data[: whole[-1].end] if whole else b"")
    expected = whole[-1].next_offset if whole else 7
    assert next_offset_after(memoryview(data[:cut]), 0 if whole else 7) == expected


@given(mixed_logs())
def test_where_a_record_leads_is_where_the_next_one_may_be(sets: list[WrittenSet]) -> None:
    found = read(log_of(sets))
    assert all(a.next_offset <= b.offset for a, b in pairwise(found))
    for frame in frames(log_of(sets)):
        held = list(ENTRIES.records(memoryview(log_of(sets)), frame, max_bytes=MAX_BYTES))
        assert held[-1].next_offset == frame.next_offset
        assert frame.first_offset == held[0].offset or not frame.first_is_known


@given(mixed_logs())
def test_times_are_those_of_the_records(sets: list[WrittenSet]) -> None:
    view = memoryview(log_of(sets))
    found = [t for frame in frames(view) for t in ENTRIES.times(view, frame, max_bytes=MAX_BYTES)]
    assert found == [(record.timestamp, record.offset) for s in sets for record in s.records]


@given(written_sets(), st.data())
def test_a_flipped_bit_is_found_unless_the_checksum_does_not_cover_it(
    written: WrittenSet, draw: st.DataObject
) -> None:
    frame = draw.draw(st.sampled_from(list(frames(written.data))))
    one = bytearray(written.data[frame.position : frame.end])
    at = draw.draw(st.integers(0, len(one) - 1))
    one[at] ^= 1 << draw.draw(st.integers(0, 7))
    damaged = bytes(one)
    if at >= 12:
        # The checksum, and all that it covers: from the magic on, whatever is in a compressed set too.
        try:
            header = read_entry(damaged)
            FORMAT.verify(memoryview(damaged), FORMAT.frame_at(memoryview(damaged), 0, 0))  # type: ignore[arg-type]
        except CorruptMessage:
            return
        raise AssertionError(f"byte {at} of {len(one)} changed and {header} was believed")
    if at >= 8:
        # The length is not covered, but then other bytes are: too many, too few, or none at all.
        try:
            list(messages(damaged, max_bytes=MAX_BYTES))
        except CorruptMessage:
            return
        raise AssertionError(f"byte {at} of the length changed and the message was believed")
    # The offset is outside: a broker sets it without a look at the rest. Only the offsets differ.
    try:
        found = list(messages(damaged, max_bytes=MAX_BYTES))
    except CorruptMessage:
        return
    sound = list(messages(bytes(written.data[frame.position : frame.end]), max_bytes=MAX_BYTES))
    assert [m[1:] for m in found] == [m[1:] for m in sound]


@given(mixed_logs(), st.data())
def test_a_log_changed_anywhere_raises_nothing_but_our_errors(
    sets: list[WrittenSet], draw: st.DataObject
) -> None:
    damaged = bytearray(log_of(sets))
    at = draw.draw(st.integers(0, len(damaged)))
    damaged[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=4))
    try:
        read(bytes(damaged))
    except KafkaError:
        pass


@given(st.binary(max_size=100), magics)
def test_garbage_raises_nothing_but_our_errors(data: bytes, magic: int) -> None:
    aimed = data[:16] + bytes((magic,)) + data[17:]
    for tried in (data, aimed):
        try:
            read(tried)
            list(messages(tried, max_bytes=1 << 16))
        except KafkaError:
            pass


@given(st.binary(max_size=100), magics, codecs)
def test_garbage_under_a_sound_checksum_raises_nothing_but_our_errors(
    data: bytes, magic: int, codec: Codec
) -> None:
    covered = bytes((magic, codec)) + data
    entry = b"".join(
        (bytes(8), (4 + len(covered)).to_bytes(4, "big"), zlib.crc32(covered).to_bytes(4, "big"), covered)
    )
    assert entry[MAGIC_POSITION] == magic
    for tried in (
        entry,
        b"" if codec is Codec.NONE else wrap_set(data, magic=magic, codec=codec, last_offset=9),
    ):
        try:
            list(messages(tried, max_bytes=1 << 16))
        except KafkaError:
            pass
