"""The compiled kernel stays within its block and within the arena's regions, whatever the block says."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.column_types import Status
from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.columnar.kernel_columns import BAD_LAYOUT
from pyspark_kafkalog.formats.base import varint_bytes
from pyspark_kafkalog.formats.record import encode_record
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.kernel_arena import Arena
from tests.support.columnar.rows import good_record, raw_record
from tests.support.formats.batches import new_records


class Run:
    """One call of the kernel over ``block``, which lies between bytes of ``poison``."""

    def __init__(
        self, block: bytes, count: int, poison: bytes, *, rows: int = 4, size: int = 64, headers: int = 3
    ):
        found, why = kernel()
        assert found is not None, why
        around = poison * 50
        self.arena = Arena(rows, size, headers)
        table = np.array(
            [[len(around), len(around) + len(block), count, 1 << 30, 0, 1 << 30, 7, 0, 0]], np.int64
        )
        source = np.frombuffer(around + block + around, np.uint8)
        self.status = found(source, table, self.arena.bytes, self.arena.layout, self.arena.state)


blocks = st.lists(
    st.one_of(
        st.builds(lambda r, d: encode_record(r, 0, d), new_records.map(lambda r: r), st.integers(0, 5)),
        st.builds(
            raw_record,
            length=st.none() | st.integers(-2, 200) | st.sampled_from([(1 << 31) - 1, -(1 << 31)]),
            key=st.tuples(st.integers(-2, 90) | st.just((1 << 31) - 1), st.binary(max_size=30)),
            value=st.tuples(st.integers(-2, 90) | st.just((1 << 31) - 1), st.binary(max_size=30)),
            headers=st.just(b"\0") | st.binary(max_size=12) | st.integers(-1, 1 << 30).map(varint_bytes),
            delta=st.integers(0, 6),
        ),
        st.binary(max_size=20),
    ),
    max_size=6,
).map(b"".join)


@given(blocks, st.integers(0, 9), st.data())
@example(raw_record(key=(90, b"")), 1, None)
@example(good_record() + b"\x80", 2, None)
@example(raw_record(headers=varint_bytes(1) + varint_bytes(5)), 1, None)
def test_what_lies_around_the_block_is_never_looked_at(block: bytes, count: int, data: Any) -> None:
    room = (
        {}
        if data is None
        else {
            "rows": data.draw(st.integers(0, 5)),
            "size": data.draw(st.integers(0, 300)),
            "headers": data.draw(st.integers(0, 4)),
        }
    )
    runs = [Run(block, count, poison, **room) for poison in (b"\0", b"\xff", b"\x02", b"\x80\x01")]
    first = runs[0]
    assert first.status in set(Status)
    for run in runs[1:]:
        assert run.status == first.status
        assert run.arena.state.tolist() == first.arena.state.tolist()
        assert run.arena.bytes.tobytes() == first.arena.bytes.tobytes()


@given(blocks, st.integers(0, 9), st.integers(0, 5), st.integers(0, 300), st.integers(0, 4))
def test_nothing_is_written_between_the_regions(
    block: bytes, count: int, rows: int, size: int, headers: int
) -> None:
    run = Run(block, count, b"\1", rows=rows, size=size, headers=headers)
    assert run.arena.outside_is_untouched()
    assert run.arena.state[k.ROWS] <= rows
    assert run.arena.state[k.HEADERS] <= headers
    assert run.arena.state[k.KEY_BYTES] + run.arena.state[k.VALUE_BYTES] <= size


def test_regions_that_do_not_fit_the_arena_are_refused() -> None:
    found, _ = kernel()
    assert found is not None
    good = Run(good_record(), 1, b"")
    assert good.status == Status.DONE
    source, table = np.frombuffer(good_record(), np.uint8), np.zeros((1, k.BLOCK_FIELDS), np.int64)
    table[0, : k.BLOCK_COUNT + 1] = (0, len(source), 1)
    for region, length in good.arena.lengths.items():
        layout = good.arena.layout.copy()
        layout[region] = len(good.arena.bytes) - length + 1
        assert found(source, table, good.arena.bytes, layout, np.zeros_like(good.arena.state)) == BAD_LAYOUT
    for start, end in ((-1, 5), (5, 4), (0, len(source) + 1)):
        table[0, :2] = (start, end)
        assert (
            found(source, table, good.arena.bytes, good.arena.layout, np.zeros_like(good.arena.state))
            == BAD_LAYOUT
        )


def test_the_kernel_reads_memory_that_may_not_be_written() -> None:
    record = encode_record(NewRecord(b"v"), 0, 0)
    assert not np.frombuffer(record, np.uint8).flags.writeable
    assert Run(record, 1, b"").status == Status.DONE
