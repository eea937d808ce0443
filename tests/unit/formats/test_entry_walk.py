from __future__ import annotations

import struct

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import next_offset_after
from pyspark_kafkalog.types import NewRecord


def batch(base_offset: int, count: int) -> bytes:
    return encode_batch([NewRecord(b"v%d" % i) for i in range(count)], base_offset=base_offset)


def test_batches_that_end_before_the_asked_offset_do_not_go_back() -> None:
    assert next_offset_after(memoryview(batch(10, 2)), 15) == 15


def test_a_nonsense_length_ends_the_walk() -> None:
    data = batch(10, 1) + struct.pack(">qi", 11, -5) + bytes(100)
    assert next_offset_after(memoryview(data), 10) == 11


def test_the_shortest_entry_of_all_is_seen_at_the_end() -> None:
    shortest = struct.pack(">qiIb", 5, 14, 0, 0) + bytes(9)
    assert next_offset_after(memoryview(shortest), 5) == 6
    assert next_offset_after(memoryview(batch(3, 2) + shortest), 3) == 6
    assert next_offset_after(memoryview(shortest[:-1]), 5) == 5
