"""Both engines give the rows that `formats` reads, and identical record batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar.decoder import COLUMNS
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.columnar.rows import FOREVER, column, decode
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
