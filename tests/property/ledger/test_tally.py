from __future__ import annotations

import struct
import zlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.ledger.receipts import Tally
from tests.support.ledger.plans import P0, Row, batch, facts, plan_of

ROWS = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.one_of(st.none(), st.integers(-5_000, 1 << 50)),
        st.one_of(st.none(), st.binary(max_size=20)),
        st.one_of(st.none(), st.binary(max_size=40)),
    ),
    max_size=30,
    unique_by=lambda row: row[0],
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def digest(rows: list[Row]) -> str:
    """The same by one row after the other."""
    crcs = [0, 0, 0]
    for offset, _, key, value in rows:
        lengths = [-1 if one is None else len(one) for one in (key, value)]
        for at, data in enumerate([struct.pack("<q", offset), *(struct.pack("<i", n) for n in lengths)]):
            crcs[at] = zlib.crc32(data, crcs[at])
    return "-".join(f"{one:08x}" for one in crcs)


@given(ROWS, st.data())
def test_a_receipt_does_not_depend_on_how_the_rows_are_cut_into_batches(
    rows: list[Row], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    tally = Tally()
    whole = batch(rows)
    for start, stop in pairwise([0, *cuts, len(rows)]):
        tally.add(whole.slice(start, stop - start) if data.draw(st.booleans()) else batch(rows[start:stop]))
    plan = plan_of({P0: facts(0, 20)})
    found = tally.receipt(plan, plan.ranges[0], attempt=0, host="", duration_ms=0)
    times = [time // 1000 for _, time, _, _ in rows if time is not None]
    assert found.digest == digest(rows)
    assert found.records == len(rows)
    assert found.bytes == sum(len(key or b"") + len(value or b"") for _, _, key, value in rows)
    assert (found.first_offset, found.last_offset) == ((rows[0][0], rows[-1][0]) if rows else (None, None))
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (
        (min(times), max(times)) if times else (None, None)
    )
