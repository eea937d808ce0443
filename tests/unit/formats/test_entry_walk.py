from __future__ import annotations

import struct

import pytest

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import next_offset_after
from pyspark_kafkalog.types import NewRecord


def batch(base_offset: int, count: int) -> bytes:
    return encode_batch([NewRecord(b"v%d" % i) for i in range(count)], base_offset=base_offset)


def test_reading_goes_on_after_the_last_whole_batch() -> None:
    data = batch(10, 3) + batch(13, 1) + batch(14, 5)
    assert next_offset_after(memoryview(data), 10) == 19


@pytest.mark.parametrize("missing", [1, 20, 60, 61, 65])
def test_a_cut_batch_at_the_end_is_left_for_the_next_fetch(missing: int) -> None:
    data = batch(10, 3) + batch(13, 2)
    assert next_offset_after(memoryview(data[:-missing]), 10) == 13


def test_without_a_whole_batch_reading_stays_where_it_is() -> None:
    assert next_offset_after(memoryview(b""), 7) == 7
    assert next_offset_after(memoryview(batch(7, 2)[:-1]), 7) == 7
    assert next_offset_after(memoryview(b"\0" * 22), 7) == 7


def test_a_batch_without_records_counts_with_its_last_offset() -> None:
    empty = encode_batch([], base_offset=20, offset_deltas=[], last_offset_delta=4)
    assert next_offset_after(memoryview(batch(10, 3) + empty), 10) == 25


def test_a_batch_that_begins_before_the_asked_offset_counts_too() -> None:
    assert next_offset_after(memoryview(batch(10, 10)), 15) == 20


def test_batches_that_end_before_the_asked_offset_do_not_go_back() -> None:
    assert next_offset_after(memoryview(batch(10, 2)), 15) == 15


def test_message_sets_of_older_formats_are_walked_by_their_own_offsets() -> None:
    def entry(offset: int, magic: int, size: int) -> bytes:
        return struct.pack(">qiIb", offset, size, 0, magic) + bytes(size - 5)

    data = entry(3, 0, 14) + entry(4, 1, 30) + entry(9, 1, 22)
    assert next_offset_after(memoryview(data), 3) == 10


def test_a_nonsense_length_ends_the_walk() -> None:
    data = batch(10, 1) + struct.pack(">qi", 11, -5) + bytes(100)
    assert next_offset_after(memoryview(data), 10) == 11


def test_the_shortest_entry_of_all_is_seen_at_the_end() -> None:
    shortest = struct.pack(">qiIb", 5, 14, 0, 0) + bytes(9)
    assert next_offset_after(memoryview(shortest), 5) == 6
    assert next_offset_after(memoryview(batch(3, 2) + shortest), 3) == 6
    assert next_offset_after(memoryview(shortest[:-1]), 5) == 5
