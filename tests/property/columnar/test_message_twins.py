"""Messages of v0 and v1, mixed with batches: both engines give what `formats` reads, whatever is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pyspark_kafkalog.columnar import column_types as m
from pyspark_kafkalog.columnar import decoder, message_walk
from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.column_types import Status
from pyspark_kafkalog.columnar.decoder import COLUMNS, Decoded
from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.columnar.kernel_columns import BAD_LAYOUT
from pyspark_kafkalog.columnar.message_walk import walk_messages
from pyspark_kafkalog.formats import legacy, message_set
from pyspark_kafkalog.formats.base import crc32
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CRC_POSITION, MAGIC_POSITION
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.kernel_arena import Arena
from tests.support.columnar.rows import FOREVER, column, decode, outcome
from tests.support.formats.batches import MAX_BYTES
from tests.support.formats.message_sets import codecs as old_codecs
from tests.support.formats.message_sets import magics, plain_records
from tests.support.formats.mixed_logs import mixed_logs

columns_of_interest = st.just(list(COLUMNS)) | st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True)


def assert_same(data: bytes, columns: list[str] = list(COLUMNS), **settings: Any) -> Decoded | str:  # noqa: B006
    numba, plain = (outcome(data, engine, columns, **settings) for engine in ("numba", "plain"))
    assert numba == plain
    if isinstance(numba, Decoded):
        for batch in numba.batches:
            batch.validate(full=True)
    return numba


def rows(data: bytes) -> list[dict[str, object]]:
    """The rows that the records of ``data`` make; v0 has no kind of time, and that is -1."""
    found = []
    for frame in message_set.frames(data):
        if message_set.magic_at(data, frame.position) < 2:
            messages = list(legacy.messages(data, frame.position, max_bytes=MAX_BYTES))
            kinds = [int(message.timestamp_type) if message.magic else -1 for message in messages]
        else:
            kinds = []
        view = memoryview(data)
        for place, record in enumerate(message_set.ENTRIES.records(view, frame, max_bytes=MAX_BYTES)):
            found.append(
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": "t",
                    "partition": 0,
                    "offset": record.offset,
                    "timestamp": record.timestamp * 1000,
                    "timestampType": kinds[place] if kinds else int(record.timestamp_type),
                    "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                    "broker": 7,
                }
            )
    return found


@given(mixed_logs(), st.data(), columns_of_interest)
def test_both_engines_give_what_the_format_reads(log: bytes, data: st.DataObject, columns: list[str]) -> None:
    expected = rows(log)
    known = [row["offset"] for row in expected] or [0]
    start = data.draw(st.sampled_from(known) | st.just(0), label="start")
    end = data.draw(st.sampled_from(known) | st.just(FOREVER), label="end")
    decoded = assert_same(log, columns, start=start, end=end)
    assert isinstance(decoded, Decoded)
    wanted = [row for row in expected if start <= row["offset"] < end]  # type: ignore[operator]
    for name in columns:
        assert column(decoded, name) == [row[name] for row in wanted]
    assert decoded.records == len(wanted)
    if end == FOREVER:
        assert decoded.next_offset == max(start, list(message_set.frames(log))[-1].next_offset)


@given(mixed_logs(), st.data())
def test_a_mixed_log_read_in_pieces_is_the_log(log: bytes, data: st.DataObject) -> None:
    whole = decode(log)
    ends = [*sorted(data.draw(st.lists(st.integers(0, whole.next_offset), max_size=4))), FOREVER]
    found: list[object] = []
    position = 0
    for end in ends:
        if position < end:
            part = decode(log, data.draw(st.sampled_from(["numba", "plain"])), start=position, end=end)
            found += zip(column(part, "offset"), column(part, "value"), strict=True)
            position = min(end, part.next_offset) if end != FOREVER else part.next_offset
    assert found == list(zip(column(whole, "offset"), column(whole, "value"), strict=True))
    assert position == whole.next_offset


@given(mixed_logs(), st.data())
def test_a_mixed_answer_cut_anywhere_gives_its_whole_entries(log: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole = max([frame.end for frame in message_set.frames(log) if frame.end <= cut], default=0)
    assert assert_same(log[:cut]) == decode(log[:whole])


@given(mixed_logs(), st.integers(1, 9), st.integers(1, 300), st.integers(1, 200))
def test_where_runs_and_record_batches_are_cut_makes_no_difference(
    log: bytes, row_limit: int, byte_limit: int, run_bytes: int
) -> None:
    whole = decode(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "ROWS", row_limit)
        patch.setattr(decoder, "DATA_BYTES", byte_limit)
        patch.setattr(message_walk, "RUN_BYTES", run_bytes)
        decoded = assert_same(log)
    assert isinstance(decoded, Decoded)
    assert all(0 < batch.num_rows <= row_limit for batch in decoded.batches)
    for name in COLUMNS:
        assert column(decoded, name) == column(whole, name)
    assert replace(decoded, batches=[]) == replace(whole, batches=[])


bytes_of_interest = st.binary(max_size=4) | st.sampled_from(
    [b"\0", b"\1", b"\2", b"\3", b"\4", b"\x08", b"\xff", b"\xff" * 4, b"\0\0\0\x0e", b"\x7f\xff\xff\xff"]
)


@given(mixed_logs(), columns_of_interest, st.data())
def test_mixed_answers_changed_anywhere(log: bytes, columns: list[str], data: st.DataObject) -> None:
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 4))] = data.draw(bytes_of_interest)
    assert_same(bytes(damaged), columns, start=data.draw(st.integers(0, 3)), max_batch_bytes=1 << 16)


def resealed(entry: bytearray) -> bytes:
    """An entry with a right checksum again."""
    entry[CRC_POSITION:MAGIC_POSITION] = crc32(bytes(entry[MAGIC_POSITION:])).to_bytes(4, "big")
    return bytes(entry)


@given(st.lists(plain_records, min_size=1, max_size=4), magics, old_codecs, st.data())
def test_messages_changed_under_a_right_checksum(
    records: list[NewRecord], magic: int, codec: Codec, data: st.DataObject
) -> None:
    entries = []
    for offset, record in enumerate(records):
        entry = bytearray(legacy.encode_message(record, magic=magic, offset=offset))
        # The length and the magic stay: other bytes stand for other entries, which is another test's.
        at = data.draw(st.sampled_from([0, 7, 17, 18, 21, 22, 26, 29, 30]))
        change = data.draw(bytes_of_interest)[: max(0, len(entry) - at)]
        entry[at : at + len(change)] = change
        entries.append(resealed(entry))
    block = b"".join(entries)
    log = block + data.draw(st.just(b"") | st.binary(max_size=40))
    if codec is not Codec.NONE:
        log = legacy.wrap_set(
            log, magic=magic, codec=codec, last_offset=data.draw(st.integers(-1, 9)), timestamp=5
        )
    assert_same(log, start=data.draw(st.integers(0, 2)))


@given(st.binary(min_size=1, max_size=120), magics, st.sampled_from([0, 1, 2, 3, 4, 7]), st.data())
def test_sets_of_random_bytes(value: bytes, magic: int, codec: int, data: st.DataObject) -> None:
    entry = bytearray(legacy.encode_message(NewRecord(value), magic=magic, offset=5))
    entry[17] = codec
    assert_same(resealed(entry), start=data.draw(st.integers(0, 6)))


# --- the kernels stay within what they are given


def poisoned(data: bytes, poison: bytes) -> Any:
    """``data`` as an array that lies between bytes of ``poison``."""
    around = poison * 50
    return np.frombuffer(around + data + around, np.uint8)[len(around) : len(around) + len(data)]


def walked(source: Any, start: int, stop: int, below: int) -> m.Walk:
    walk, why = kernel("walk_messages")
    assert walk is not None, why
    found = np.zeros(k.WALK_FIELDS, np.int64)
    return m.Walk(Status(walk(source, start, stop, below, found)), *found.tolist())


any_bytes = mixed_logs() | st.lists(bytes_of_interest | st.binary(max_size=30), max_size=8).map(b"".join)


@given(any_bytes, st.data())
def test_the_compiled_walk_is_the_plain_one_and_looks_at_nothing_around(
    log: bytes, data: st.DataObject
) -> None:
    cut = log[: data.draw(st.integers(0, len(log)))]
    start = data.draw(st.integers(0, len(cut)))
    where = start, data.draw(st.integers(0, len(cut) + 9)), data.draw(st.integers(0, 9) | st.just(FOREVER))
    expected = walk_messages(memoryview(cut), *where)
    for poison in (b"\0", b"\xff", b"\1", b"\0\0\0\x0e\1\0"):
        assert walked(poisoned(cut, poison), *where) == expected


@given(any_bytes, st.integers(0, 9), st.integers(-1, m.OWN_KIND), st.data())
def test_columns_of_messages_are_made_of_their_block_alone_and_within_their_regions(
    log: bytes, count: int, kind: int, data: st.DataObject
) -> None:
    fill, why = kernel("fill_messages")
    assert fill is not None, why
    cut = log[: data.draw(st.integers(0, len(log)))]
    room = (data.draw(st.integers(0, 5)), data.draw(st.integers(0, 300)), 0)
    first: tuple[object, ...] = ()
    for poison in (b"\0", b"\xff", b"\1", b"\0\0\0\x0e\1\0"):
        arena = Arena(*room)
        table = np.array([[0, len(cut), count, FOREVER, 0, FOREVER, 7, 3, kind]], np.int64)
        status = fill(poisoned(cut, poison), table, arena.bytes, arena.layout, arena.state)
        assert status in set(Status)
        assert arena.outside_is_untouched()
        assert arena.state[k.ROWS] <= room[0]
        assert arena.state[k.KEY_BYTES] + arena.state[k.VALUE_BYTES] <= room[1]
        found = status, arena.state.tolist(), arena.bytes.tobytes()
        first = first or found
        assert found == first


def test_a_walk_of_other_memory_is_refused() -> None:
    walk, _ = kernel("walk_messages")
    assert walk is not None
    source = np.frombuffer(legacy.encode_message(NewRecord(b"v"), magic=1), np.uint8)
    numbers: Callable[[int], Any] = lambda size: np.zeros(size, np.int64)  # noqa: E731
    for start in (-1, len(source) + 1):
        assert walk(source, start, 99, 9, numbers(k.WALK_FIELDS)) == BAD_LAYOUT
    assert walk(source, 0, 99, 9, numbers(k.WALK_FIELDS - 1)) == BAD_LAYOUT
    assert walk(source, 0, 99, 9, numbers(k.WALK_FIELDS)) == Status.DONE
