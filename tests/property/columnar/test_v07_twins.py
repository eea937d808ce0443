"""Both engines give the rows that `formats.v07` reads, identical record batches, and the same faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07
from pyspark_kafkalog.columnar.column_types import Status
from pyspark_kafkalog.columnar.decoder import Decoded
from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.columnar.kernel_columns import BAD_LAYOUT
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.base import crc32
from pyspark_kafkalog.formats.v07 import V07Format, encode_set, entries
from tests.support.columnar.kernel_arena import Arena
from tests.support.columnar.rows import FOREVER, column, decode_07
from tests.support.formats.captures_07 import MAX_BYTES, message_sets, payloads

offsets = st.integers(0, 1 << 40) | st.just(1 << 61)
columns_of_interest = st.just(list(COLUMNS_07)) | st.lists(
    st.sampled_from(COLUMNS_07), min_size=1, unique=True
)


def rows(data: bytes, start: int, end: int) -> list[tuple[bytes | None, int, int]]:
    """Value, offset and place of each message, as the format's own reader has them."""
    found = []
    for entry in entries(data, start):
        if entry.offset < end:
            frame = V07Format().frame_at(memoryview(data), entry.position, entry.offset)
            assert frame is not None
            messages = V07Format().records(memoryview(data), frame, max_bytes=MAX_BYTES)
            found += [(message.value, message.offset, index) for index, message in enumerate(messages)]
    return found


def outcome(data: bytes, engine: str, columns: list[str] = list(COLUMNS_07), **limits: Any) -> Decoded | str:  # noqa: B006
    """The rows, or the error's type and text."""
    try:
        return decode_07(data, engine, columns=columns, **limits)
    except KafkaError as e:
        return f"{type(e).__name__}: {e}"


def assert_same(data: bytes, columns: list[str] = list(COLUMNS_07), **limits: Any) -> Decoded | str:  # noqa: B006
    numba, plain = outcome(data, "numba", columns, **limits), outcome(data, "plain", columns, **limits)
    assert numba == plain
    if isinstance(numba, Decoded):
        for batch in numba.batches:
            batch.validate(full=True)
    return numba


@given(message_sets, offsets, columns_of_interest, st.data())
def test_both_engines_give_what_the_format_reads(
    data: bytes, start: int, columns: list[str], draw: st.DataObject
) -> None:
    known = [entry.offset for entry in entries(data, start)]
    end = draw.draw(
        st.sampled_from([start, *known, FOREVER]) | st.integers(start, start + len(data)), label="end"
    )
    decoded = assert_same(data, columns, start=start, end=end)
    assert isinstance(decoded, Decoded)
    expected = rows(data, start, end)
    for place, name in enumerate(("value", "offset", "innerIndex")):
        if name in columns:
            assert column(decoded, name) == [row[place] for row in expected]
    assert decoded.records == len(expected)
    assert decoded.next_offset == min([o for o in known if o >= end], default=start + len(data))


@given(message_sets, st.data())
def test_an_answer_cut_anywhere_gives_its_whole_entries(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    whole = max([entry.end for entry in entries(data) if entry.end <= cut], default=0)
    decoded = assert_same(data[:cut])
    assert isinstance(decoded, Decoded)
    assert decoded == decode_07(data[:whole], "numba")
    assert decoded.next_offset == whole


@given(message_sets, st.data())
def test_a_log_read_in_pieces_is_the_log(data: bytes, draw: st.DataObject) -> None:
    whole, position = decode_07(data), 0
    found: list[tuple[object, object]] = []
    while position < len(data):
        size = draw.draw(st.integers(1, len(data) + 20))
        part = decode_07(
            data[position : position + size], draw.draw(st.sampled_from(["numba", "plain"])), start=position
        )
        if part.next_offset == position:
            part = decode_07(data[position:], start=position)
        found += zip(column(part, "offset"), column(part, "value"), strict=True)
        position = part.next_offset
    assert found == list(zip(column(whole, "offset"), column(whole, "value"), strict=True))


@given(message_sets, st.integers(1, 9), st.integers(1, 300))
def test_where_record_batches_are_cut_makes_no_difference(
    data: bytes, row_limit: int, byte_limit: int
) -> None:
    whole = decode_07(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_kafkalog.columnar.decoder.ROWS", row_limit)
        patch.setattr("pyspark_kafkalog.columnar.decoder.DATA_BYTES", byte_limit)
        decoded = assert_same(data)
    assert isinstance(decoded, Decoded)
    assert all(0 < batch.num_rows <= row_limit for batch in decoded.batches)
    for name in COLUMNS_07:
        assert column(decoded, name) == column(whole, name)
    assert decoded.next_offset == whole.next_offset


bytes_of_interest = st.binary(max_size=4) | st.sampled_from(
    [b"\0", b"\1", b"\2", b"\3", b"\xff", b"\0\0\0\5", b"\0\0\0\6", b"\x7f\xff\xff\xff", b"\x80\0\0\0"]
)


@given(message_sets, columns_of_interest, st.data())
def test_answers_changed_anywhere(data: bytes, columns: list[str], draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 2))):
        at = draw.draw(st.integers(0, len(damaged)))
        damaged[at : at + draw.draw(st.integers(0, 4))] = draw.draw(bytes_of_interest)
    assert_same(bytes(damaged), columns, start=draw.draw(st.integers(0, 3)), max_batch_bytes=1 << 16)


@given(st.lists(bytes_of_interest | st.binary(max_size=30), max_size=8).map(b"".join))
def test_answers_of_random_bytes(data: bytes) -> None:
    assert_same(data)


@given(st.binary(max_size=200))
def test_the_compiled_checksum_is_that_of_the_library(payload: bytes) -> None:
    data = bytearray(encode_set([payload]))
    assert decode_07(data, "numba").records == 1
    assert data[6:10] == crc32(payload).to_bytes(4, "big")


# --- the kernel stays within its set and its arena


class Run:
    """One call of the kernel over ``data``, which lies between bytes of ``poison``."""

    def __init__(self, data: bytes, poison: bytes, *, rows: int, size: int) -> None:
        found, why = kernel("fill_entries")
        assert found is not None, why
        self.arena = Arena(rows, size, 0)
        around = poison * 50
        source = np.frombuffer(around + data + around, np.uint8)[len(around) : len(around) + len(data)]
        self.status = found(source, block(data), self.arena.bytes, self.arena.layout, self.arena.state)


def block(data: bytes) -> Any:
    """The row of an `engine.Block` with the entries of a set at offset 7, of which all are wanted."""
    return np.array([[0, len(data), 0, 0, 0, 1 << 40, 7, 0, 0]], np.int64)


@pytest.mark.parametrize("magic", [0, 1])
def test_no_byte_after_a_cut_entry_is_read(magic: int) -> None:
    data = encode_set([b"payload"], magic=magic)
    for end in range(len(data)):
        for poison in (b"\0", b"\1", b"\2", b"\3", b"\xff"):
            run = Run(data[:end], poison, rows=3, size=100)
            assert (run.status, run.arena.state[k.ROWS]) == (Status.CUT if end else Status.DONE, 0)


any_sets = message_sets | st.lists(bytes_of_interest | st.binary(max_size=30), max_size=6).map(b"".join)


@given(any_sets, st.integers(0, 5), st.integers(0, 200), st.data())
def test_nothing_around_the_set_is_read_and_nothing_between_the_regions_written(
    data: bytes, rows: int, size: int, draw: st.DataObject
) -> None:
    cut = data[: draw.draw(st.integers(0, len(data)))]
    runs = [Run(cut, poison, rows=rows, size=size) for poison in (b"\0", b"\xff", b"\0\0\0\x09\1\0")]
    for run in runs:
        assert run.status in set(Status)
        assert run.status == runs[0].status
        assert run.arena.state.tolist() == runs[0].arena.state.tolist()
        assert run.arena.bytes.tobytes() == runs[0].arena.bytes.tobytes()
        assert run.arena.outside_is_untouched()
    assert runs[0].arena.state[k.ROWS] <= rows
    assert runs[0].arena.state[k.VALUE_BYTES] <= size


@given(st.lists(payloads, min_size=1, max_size=3))
def test_regions_or_states_that_do_not_fit_are_refused(values: list[bytes]) -> None:
    data, found = encode_set(values), kernel("fill_entries")[0]
    assert found is not None
    good = Run(data, b"", rows=3, size=9000)
    assert good.status == Status.DONE
    source, table, arena = np.frombuffer(data, np.uint8), block(data), good.arena
    empty = lambda: np.zeros(k.STATE_FIELDS, np.int64)  # noqa: E731
    for region, length in arena.lengths.items():
        layout = arena.layout.copy()
        layout[region] = len(arena.bytes) - length + 1
        assert found(source, table, arena.bytes, layout, empty()) == BAD_LAYOUT
    for field, value in (
        (k.AT_POSITION, -1),
        (k.AT_POSITION, len(data) + 1),
        (k.ROWS, 4),
        (k.ROWS, -1),
        (k.VALUE_BYTES, 9001),
        (k.VALUE_BYTES, -1),
    ):
        state = empty()
        state[field] = value
        assert found(source, table, arena.bytes, arena.layout, state) == BAD_LAYOUT
    for field in (k.CAPACITY_ROWS, k.CAPACITY_BYTES):
        for value in (-1, (1 << 62) + 1):
            layout = arena.layout.copy()
            layout[field] = value
            assert found(source, table, arena.bytes, layout, empty()) == BAD_LAYOUT
    for start, end in ((-1, 5), (5, 4), (0, len(data) + 1)):
        table[0, :2] = (start, end)
        assert found(source, table, arena.bytes, arena.layout, empty()) == BAD_LAYOUT
    assert (
        found(source, np.zeros((2, k.BLOCK_FIELDS), np.int64), arena.bytes, arena.layout, empty())
        == BAD_LAYOUT
    )
