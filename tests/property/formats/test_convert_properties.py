"""Entries of 0.7 as record batches: nothing is lost, and every position leads on as it does in 0.7."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRecord, KafkaError
from pyspark_kafkalog.formats.batch import decode_records, read_header, verify_crc
from pyspark_kafkalog.formats.convert import batch_of_entry
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.formats.v07 import entries, messages
from tests.support.formats.captures_07 import MAX_BYTES, message_sets

offsets = st.integers(0, 1 << 62)


def as_batches(data: bytes, offset: int) -> list[bytes]:
    """Those that have an offset for each message."""
    found = []
    for each in entries(data, offset):
        try:
            whole = data[each.position : each.end]
            found.append(batch_of_entry(whole, each.offset, max_bytes=MAX_BYTES).batch)
        except InvalidRecord:
            count = sum(1 for _ in messages(whole, 0, max_bytes=MAX_BYTES))
            assert count > len(whole)
    return found


@given(message_sets, offsets)
def test_every_message_comes_back_once_in_its_place(data: bytes, offset: int) -> None:
    for each in entries(data, offset):
        whole = data[each.position : each.end]
        values = [bytes(m.payload) for m in messages(whole, each.offset, max_bytes=MAX_BYTES)]
        if len(values) > each.size:
            continue
        batch, count, _ = batch_of_entry(whole, each.offset, max_bytes=MAX_BYTES)
        header = read_header(batch)
        verify_crc(batch, 0, header)
        assert (header.base_offset, header.next_offset) == (each.offset, each.next_offset)
        found = decode_records(batch, 0, header, MAX_BYTES)
        assert [record.value for record in found] == values
        assert [record.offset for record in found] == list(range(each.offset, each.offset + count))


@given(message_sets, offsets, st.data())
def test_a_reader_continues_from_any_position_without_loss(
    data: bytes, offset: int, draw: st.DataObject
) -> None:
    batches = as_batches(data, offset)
    everything = [
        r for batch in batches for r in records(memoryview(batch), start_offset=0, max_bytes=MAX_BYTES)
    ]
    start = draw.draw(st.integers(offset, offset + len(data)))
    # What a broker sends: from the batch that holds the position on; what a reader does: drop what is before.
    sent = b"".join(batch for batch in batches if read_header(batch).next_offset > start)
    got = list(records(memoryview(sent), start_offset=start, max_bytes=MAX_BYTES))
    assert got == [record for record in everything if record.offset >= start]


@given(message_sets, st.data())
def test_an_entry_changed_anywhere_raises_nothing_but_our_errors(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    at = draw.draw(st.integers(0, len(data)))
    damaged[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=4))
    try:
        batch_of_entry(bytes(damaged), 0, max_bytes=1 << 16)
    except KafkaError:
        pass
