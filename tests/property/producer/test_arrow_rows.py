"""What compiled code makes of Arrow rows is what plain Python makes of them: bytes, places, bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.producer.columns import ANYWHERE, ArrowRows, Columns, Kernels, arrow_columns
from pyspark_kafkalog.producer.encoder import RecordBatches, encode_block
from pyspark_kafkalog.producer.producer_batch import BlockBatch
from pyspark_kafkalog.producer.routing import partition_for
from pyspark_kafkalog.types import TopicPartition

pytestmark = pytest.mark.skipif(kernel("encode_records")[0] is None, reason="there is no compiled code")

_cells = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70) | st.just(b"x" * 8200)
_types = st.sampled_from([pa.binary(), pa.large_binary()])
_times = st.none() | st.integers(-(2**60), 2**60)


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows, of which the first and the last may have been cut off: offsets then begin elsewhere."""
    count = draw(st.integers(0, 30))

    def column(cells: st.SearchStrategy[object], kind: pa.DataType) -> pa.Array:
        return pa.array(draw(st.lists(cells, min_size=count, max_size=count)), kind)

    columns = {"value": column(_cells, draw(_types))}
    if draw(st.booleans()):
        columns["key"] = column(_cells, draw(_types))
    if draw(st.booleans()):
        columns["timestamp"] = column(_times, pa.int64())
    if draw(st.booleans()):
        columns["partition"] = column(st.none() | st.integers(0, 6), pa.int32())
    start = draw(st.integers(0, count))
    return pa.record_batch(columns).slice(start, draw(st.integers(0, count - start)))


def both(batch: pa.RecordBatch) -> tuple[ArrowRows | None, Columns | None]:
    """The rows as compiled code and as plain Python have them; none of no rows."""
    staying = next(arrow_columns(batch, 1000, record_batches=True, kernels=Kernels(0)), None)
    plain = next(arrow_columns(batch, 1000), None)
    assert staying is None or isinstance(staying, ArrowRows)
    assert plain is None or isinstance(plain, Columns)
    return staying, plain


@given(_batches())
def test_the_records_are_those_of_plain_python(batch: pa.RecordBatch) -> None:
    rows, plain = both(batch)
    if rows is None or plain is None:
        assert rows is plain is None
        return
    expected = encode_block(plain.values, plain.keys, plain.times, None)
    assert rows.encoded(plain.times[0], 0) == expected
    assert rows.times() == plain.times
    values, keys = rows.lists()
    assert values == plain.values
    assert (keys or [None] * len(rows)) == (plain.keys or [None] * len(rows))


@given(_batches(), st.integers(0, 20_000))
def test_sizes_are_bounds_no_wider_than_those_of_plain_python(batch: pa.RecordBatch, room: int) -> None:
    rows, plain = both(batch)
    if rows is None or plain is None:
        return
    count = len(rows)
    assert (count, rows.largest()) == (len(plain), plain.largest())
    for start in range(count):
        bound = rows.size(start, count)
        assert len(rows.part(start, count).encoded(plain.times[0], start)) <= bound
        assert bound <= plain.size(start, count)
        fits = rows.most_within(start, count, room)
        assert fits == start or rows.size(start, fits) <= room
        assert fits == count or rows.size(start, fits + 1) > room


@given(_batches(), st.integers(1, 5), st.booleans())
def test_rows_go_where_their_partition_or_key_says_in_their_order(
    batch: pa.RecordBatch, count: int, by_key: bool
) -> None:
    rows, plain = both(batch)
    if rows is None or plain is None:
        return
    expected: dict[int, list[bytes | None]] = {}
    for row, value in enumerate(plain.values):
        named = plain.partitions[row] if plain.partitions is not None else None
        key = plain.keys[row] if plain.keys is not None and by_key else None
        by_hash = partition_for(key, count) if key is not None else ANYWHERE
        expected.setdefault(by_hash if named is None else named, []).append(value)
    found = rows.by_partition(count, by_key=by_key)
    assert {number: own.lists()[0] for number, own in found} == expected
    assert len(found) == len(expected)
    if ANYWHERE in expected:
        found = rows.by_partition(count, by_key=by_key, otherwise=3)
        assert ANYWHERE not in {number for number, _ in found}


@given(_batches(), st.lists(st.integers(0, 30), max_size=3), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_a_batch_of_several_pieces_is_that_of_all_its_records(
    batch: pa.RecordBatch, cuts: Sequence[int], codec: Codec
) -> None:
    rows, plain = both(batch)
    if rows is None or plain is None:
        return
    whole = _batch()
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, stop in pairwise(edges):
        if stop > start:
            assert whole.extend_rows(rows.part(start, stop), rows.size(start, stop)) == start
    encoding = RecordBatches(codec, None)
    expected = encoding.encode(plain.values, plain.keys, plain.times, None, (-1, -1, -1))
    assert whole.encode(encoding) == expected
    if whole.count > 1:
        first, second = whole.split()
        assert first.values + second.values == plain.values
        assert first.times + second.times == plain.times


@given(_batches())
def test_single_records_may_follow_and_precede(batch: pa.RecordBatch) -> None:
    rows, plain = both(batch)
    if rows is None or plain is None:
        return
    mixed = _batch()
    mixed.add(b"before", None, 5, (), 10)
    mixed.extend_rows(rows, rows.size(0, len(rows)))
    mixed.add(b"after", b"key", 6, (("h", b"1"),), 10)
    also = _batch()
    also.extend_rows(rows, rows.size(0, len(rows)))
    also.extend([b"after"], None, [6], None, 10)
    assert mixed.values == [b"before", *plain.values, b"after"]
    assert also.values == [*plain.values, b"after"]
    assert also.count == len(also.times) == len(rows) + 1


def test_few_rows_and_times_that_are_too_far_apart_are_left_to_plain_python() -> None:
    few = Kernels(100)
    assert [few.ready(60), few.ready(60), few.ready(1)] == [False, False, True]
    far = pa.record_batch({"value": [b"v"], "timestamp": pa.array([2**62], pa.int64())})
    assert all(isinstance(rows, Columns) for rows in _staying(far))
    headers = pa.record_batch({"value": [b"v"], "headers": pa.array([None], pa.list_(pa.int8()))})
    assert all(isinstance(rows, Columns) for rows in _staying(headers))


def _staying(batch: pa.RecordBatch) -> Iterator[object]:
    return arrow_columns(batch, 1000, record_batches=True, kernels=Kernels(0))


def _batch() -> BlockBatch:
    changed = threading.Condition()
    return BlockBatch(TopicPartition("t", 0), (0, 0), changed, created=0, due=0, deadline=0)
