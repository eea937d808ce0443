"""Both engines give the rows that `formats` reads, identical record batches, and the same errors."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pyspark_kafkalog.columnar.decoder import COLUMNS
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.columnar.rows import FOREVER, column, decode, offsets, outcome
from tests.support.formats.batches import MAX_BYTES, codecs, new_records


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches one behind the other: all codecs, gaps, empty batches, markers, both kinds of timestamp."""
    data, offset = b"", draw(st.integers(0, 3) | st.just(1 << 62))
    for _ in range(draw(st.integers(1, 4))):
        offset += draw(st.integers(0, 2))
        if draw(st.integers(0, 9)) == 0:
            kind = draw(st.sampled_from([ControlType.ABORT, ControlType.COMMIT]))
            data += encode_control(kind, producer_id=1, producer_epoch=0, timestamp=0, base_offset=offset)
            offset += 1
            continue
        records = draw(st.lists(new_records, max_size=6))
        gaps = draw(st.lists(st.integers(1, 3), min_size=len(records), max_size=len(records)))
        deltas = [sum(gaps[: i + 1]) - 1 for i in range(len(records))]
        last = max(deltas, default=0) + draw(st.integers(0, 2))
        data += encode_batch(
            records,
            codec=draw(codecs),
            base_offset=offset,
            offset_deltas=deltas,
            last_offset_delta=last,
            timestamp_type=draw(st.sampled_from(TimestampType)),
        )
        offset += last + 1
    return data


def rows(records: Sequence[Record]) -> dict[str, list[object]]:
    """The columns that these records make."""
    headers = [[{"key": name, "value": value} for name, value in r.headers] or None for r in records]
    return {
        "key": [r.key for r in records],
        "value": [r.value for r in records],
        "topic": ["t"] * len(records),
        "partition": [0] * len(records),
        "offset": [r.offset for r in records],
        "timestamp": [r.timestamp * 1000 for r in records],
        "timestampType": [int(r.timestamp_type) for r in records],
        "headers": headers,
        "broker": [7] * len(records),
    }


@given(logs(), st.data())
def test_both_engines_give_what_the_records_say(log: bytes, data: st.DataObject) -> None:
    expected = list(message_set.records(log, start_offset=0, max_bytes=MAX_BYTES))
    known = [r.offset for r in expected] or [0]
    start = data.draw(st.sampled_from(known) | st.just(0), label="start")
    end = data.draw(st.sampled_from(known) | st.just(FOREVER), label="end")
    columns = data.draw(
        st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True) | st.just(list(COLUMNS)), label="columns"
    )
    numba = decode(log, "numba", start=start, end=end, columns=columns)
    plain = decode(log, "plain", start=start, end=end, columns=columns)
    wanted = rows([r for r in expected if start <= r.offset < end])
    for name in columns:
        assert column(plain, name) == wanted[name]
    assert numba == plain
    for batch in numba.batches:
        batch.validate(full=True)
    frames = list(message_set.frames(log))
    if end == FOREVER and frames:
        assert plain.next_offset == max(start, frames[-1].next_offset)


@given(logs(), st.data())
def test_a_log_read_in_pieces_is_the_log(log: bytes, data: st.DataObject) -> None:
    whole = decode(log)
    engine = data.draw(st.sampled_from(["numba", "plain"]))
    ends = [*sorted(data.draw(st.lists(st.integers(0, whole.next_offset), max_size=4))), FOREVER]
    offsets: list[int] = []
    position = 0
    for end in ends:
        if position < end:
            part = decode(log, engine, start=position, end=end)
            offsets += column(part, "offset")
            position = min(end, part.next_offset) if end != FOREVER else part.next_offset
    assert offsets == column(whole, "offset")
    assert position == whole.next_offset


@given(logs(), st.data())
def test_an_answer_cut_anywhere_gives_its_whole_batches(log: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole = sum(1 for frame in message_set.frames(log) if frame.end <= cut)
    kept = list(message_set.frames(log))[:whole]
    decoded = decode(log[:cut], "numba")
    assert decoded == decode(log[:cut], "plain")
    assert decoded == decode(log[: kept[-1].end] if kept else b"", "plain")


@given(st.lists(new_records, min_size=1, max_size=30), codecs, st.data())
def test_where_record_batches_are_cut_makes_no_difference(
    records: list[NewRecord], codec: object, data: st.DataObject
) -> None:
    from pyspark_kafkalog.columnar import decoder

    log = encode_batch(records, codec=codec) + encode_batch(records, base_offset=len(records))  # type: ignore[arg-type]
    whole = decode(log)
    limits = {
        "ROWS": data.draw(st.integers(1, 40)),
        "DATA_BYTES": data.draw(st.integers(1, 400)),
        "HEADER_COUNT": data.draw(st.integers(1, 5)),
    }
    usual = {name: getattr(decoder, name) for name in limits}
    try:
        vars(decoder).update(limits)
        numba, plain = decode(log, "numba"), decode(log, "plain")
    finally:
        vars(decoder).update(usual)
    assert numba == plain
    for name in COLUMNS:
        assert column(numba, name) == column(whole, name)
    assert replace(numba, batches=[]) == replace(whole, batches=[])
    assert all(batch.num_rows <= limits["ROWS"] for batch in numba.batches)


@given(logs(), st.integers(0), st.integers(0, 7), st.booleans())
def test_a_flipped_bit_is_the_same_fault_to_both(log: bytes, at: int, bit: int, follows: bool) -> None:
    damaged = bytearray(log)
    damaged[at % len(log)] ^= 1 << bit
    first = int.from_bytes(log[:8], "big")
    expected = ExpectedOffsets.of_answer(first, FOREVER, follows=follows)
    for start, end in ((first, FOREVER), (first + 2, first + 5)):
        numba, plain = (
            outcome(bytes(damaged), engine, start=start, end=end, expected=expected)
            for engine in ("numba", "plain")
        )
        assert numba == plain


@st.composite
def transactions(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], list[int]]:
    """A log of up to three producers, each in a transaction, outside of one or without an id; its aborted
    transactions as a broker lists them; the offsets of what was committed.
    """
    data, offset = b"", 0
    opened: dict[int, list[int]] = {}
    aborted, committed = [], []
    for _ in range(draw(st.integers(1, 12))):
        producer = draw(st.integers(0, 2))
        action = draw(st.sampled_from(["send", "send", "plain", "end"]))
        if action == "end" and producer in opened:
            kind = draw(st.sampled_from([ControlType.ABORT, ControlType.COMMIT]))
            sent = opened.pop(producer)
            if kind is ControlType.ABORT:
                aborted.append((producer, sent[0]))
            else:
                committed += sent
            data += encode_control(
                kind, producer_id=producer, producer_epoch=0, timestamp=0, base_offset=offset
            )
            offset += 1
            continue
        count = draw(st.integers(1, 3))
        sent = list(range(offset, offset + count))
        transactional = action == "send"
        if transactional:
            opened.setdefault(producer, []).extend(sent)
        else:
            committed += sent
        data += encode_batch(
            [NewRecord(key=None, value=b"%d" % number, timestamp=0) for number in sent],
            codec=draw(codecs),
            base_offset=offset,
            producer_id=producer if transactional else draw(st.sampled_from([-1, 7])),
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        offset += count
    # Below the last stable offset all transactions have ended.
    for producer, sent in opened.items():
        data += encode_control(
            ControlType.COMMIT, producer_id=producer, producer_epoch=0, timestamp=0, base_offset=offset
        )
        committed += sent
        offset += 1
    return data, aborted, sorted(committed)


@given(transactions(), st.integers(0, 9))
def test_what_was_aborted_is_in_no_rows(
    log: tuple[bytes, list[tuple[int, int]], list[int]], start: int
) -> None:
    data, aborted, committed = log
    numba, plain = (
        decode(data, engine, start=start, aborted=aborted, read_committed=True)
        for engine in ("numba", "plain")
    )
    assert numba == plain
    assert offsets(numba) == [offset for offset in committed if offset >= start]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), codecs)
def test_small_batches_become_one_record_batch(sizes: list[int], codec: Codec) -> None:
    log = b"".join(
        encode_batch([NewRecord(key=None, value=b"v" * size, timestamp=0)], codec=codec, base_offset=number)
        for number, size in enumerate(sizes)
    )
    (batch,) = decode(log, "numba").batches
    assert batch.column("value").to_pylist() == [b"v" * size for size in sizes]
