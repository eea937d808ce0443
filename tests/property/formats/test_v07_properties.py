"""The five of each codec, for 0.7's messages."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import (
    V07Format,
    check_produced,
    encode_set,
    entries,
    entry_at_byte,
    messages,
)
from pyspark_kafkalog.types import Record
from tests.support.formats.captures_07 import MAX_BYTES, codecs, magics, message_sets, payloads

FORMAT = V07Format()
offsets = st.integers(0, 1 << 62)


def records(data: bytes, offset: int) -> list[Record]:
    found: list[Record] = []
    for entry in entries(data, offset):
        frame = FORMAT.frame_at(memoryview(data), entry.position, entry.offset)
        assert frame is not None
        FORMAT.verify(memoryview(data), frame)
        found += FORMAT.records(memoryview(data), frame, max_bytes=MAX_BYTES)
    return found


@given(st.lists(payloads), codecs | st.just(Codec.NONE), magics, offsets)
def test_what_is_written_is_read(values: list[bytes], codec: Codec, magic: int, offset: int) -> None:
    data = encode_set(values, codec=codec, magic=magic)
    assert [record.value for record in records(data, offset)] == values
    assert check_produced(data, max_message_bytes=MAX_BYTES, max_bytes=MAX_BYTES) == (len(data), len(values))


@given(message_sets, offsets, st.data())
def test_a_set_cut_anywhere_gives_its_longest_whole_prefix(
    data: bytes, offset: int, draw: st.DataObject
) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    whole = [entry for entry in entries(data) if entry.end <= cut]
    assert [e[:5] for e in entries(data[:cut])] == [e[:5] for e in whole]
    prefix = data[: whole[-1].end] if whole else b""
    assert records(data[:cut], offset) == records(prefix, offset)


@given(st.binary(max_size=80))
def test_garbage_raises_nothing_but_our_errors(data: bytes) -> None:
    try:
        list(messages(data, 0, max_bytes=1 << 16))
        check_produced(data, max_message_bytes=100, max_bytes=1 << 16)
    except KafkaError:
        pass


@given(message_sets, st.data())
def test_a_set_changed_anywhere_raises_nothing_but_our_errors(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    at = draw.draw(st.integers(0, len(data)))
    damaged[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=4))
    try:
        list(messages(bytes(damaged), 0, max_bytes=1 << 16))
    except KafkaError:
        pass


@given(message_sets, offsets)
def test_where_a_record_leads_is_where_the_next_one_is(data: bytes, offset: int) -> None:
    found = records(data, offset)
    for record, after in pairwise(found):
        # Between them may lie entries that hold no message and so have none to lead past them.
        between = data[record.next_offset - offset : after.offset - offset]
        assert record.next_offset <= after.offset
        assert records(between, record.next_offset) == []
    if found:
        assert records(data[found[-1].next_offset - offset :], 0) == []


@given(message_sets, offsets)
def test_messages_records_and_times_tell_the_same(data: bytes, offset: int) -> None:
    found = records(data, offset)
    listed = [(bytes(m.payload), m.offset) for m in messages(data, offset, max_bytes=MAX_BYTES)]
    assert listed == [(record.value, record.next_offset) for record in found]
    times: list[tuple[int, int]] = []
    for entry in entries(data, offset):
        frame = FORMAT.frame_at(memoryview(data), entry.position, entry.offset)
        assert frame is not None
        times += FORMAT.times(memoryview(data), frame, max_bytes=MAX_BYTES)
    assert times == [(record.timestamp, record.offset) for record in found]


@given(message_sets, offsets, st.data())
def test_reading_on_from_any_message_misses_none(data: bytes, offset: int, draw: st.DataObject) -> None:
    found = [(bytes(m.payload), m.offset) for m in messages(data, offset, max_bytes=MAX_BYTES)]
    seen = draw.draw(st.integers(0, len(found)))
    resume = found[seen - 1][1] if seen else offset
    again = messages(data[resume - offset :], resume, max_bytes=MAX_BYTES)
    rest = [(bytes(m.payload), m.offset) for m in again]
    assert rest[len(rest) - (len(found) - seen) :] == found[seen:]


@given(message_sets, st.data())
def test_the_entry_that_holds_a_byte_is_found_or_how_far_to_go(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    target = draw.draw(st.integers(0, len(data) + 100))
    found = entry_at_byte(data[:cut], target)
    bounds = [(entry.position, entry.end) for entry in entries(data)]
    assert found in [start for start, _ in bounds] + [len(data)]
    known = [(start, end) for start, end in bounds if start + 5 <= cut]
    holding = [start for start, end in known if start <= target < end]
    assert found == (holding[0] if holding else known[-1][1] if known else 0)
