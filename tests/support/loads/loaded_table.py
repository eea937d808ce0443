"""What a load's output must hold: every committed offset once, with its own value, in its own load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pyarrow.parquet as pq

from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from tests.support.loads.growing_topic import HOURS, key_at, value_at

Place = tuple[int, int]
"""Partition and offset."""


def places_of(plan: Plan) -> Iterator[Place]:
    """Every offset that a plan reads."""
    return ((r.partition, offset) for r in plan.ranges for offset in range(r.start, r.end))


def committed_places(ledger: Ledger) -> dict[Place, int]:
    """Every offset that the commits in effect say was loaded, with the number of its load; each once."""
    found: dict[Place, int] = {}
    for commit in ledger.lineage():
        if not commit.is_load:
            continue
        for place in places_of(ledger.plan(commit.number)):
            assert place not in found, f"{place} is in loads {found[place]} and {commit.number}"
            found[place] = commit.number
    return found


def check_positions(ledger: Ledger) -> None:
    """The committed ranges tile what lies before the committed positions, from offset 0."""
    head = ledger.head()
    assert head is not None
    reached: Counter[int] = Counter()
    for partition, offset in sorted(committed_places(ledger)):
        assert offset == reached[partition], (
            f"partition {partition}: [{reached[partition]}, {offset}) is missing"
        )
        reached[partition] += 1
    positions = {p.partition: p.next for p in head.positions if p.next}
    assert reached == positions, f"loads end at {dict(reached)}, the commit says {positions}"


def check_table(file: Path, ledger: Ledger, *, with_load: bool = True, with_pending: bool = False) -> int:
    """A Parquet file with what a reader sees has the rows that are committed; how many they are.

    ``with_pending`` says that it may have the rows of the plan that is pending too, all or none. Where there
    are columns of directories by hour, they are those of the rows' times.
    """
    columns = pq.read_table(file).to_pydict()
    places = list(zip(columns["partition"], columns["offset"], strict=True))
    expected = committed_places(ledger)
    counted = Counter(places)
    pending = ledger.pending() if with_pending else None
    if pending is not None and counted.keys() & {*places_of(pending)}:
        expected |= dict.fromkeys(places_of(pending), pending.number)
    assert [place for place, count in counted.items() if count > 1] == [], (
        "rows that are there more than once"
    )
    assert sorted(expected.keys() - counted.keys())[:10] == [], "offsets that are missing"
    assert sorted(counted.keys() - expected.keys())[:10] == [], "offsets that no commit published"
    assert columns["value"] == [value_at(*place) for place in places]
    assert columns["key"] == [key_at(*place) for place in places]
    if with_load:
        assert columns["load"] == [expected[place] for place in places]
    if "hour" in columns:
        times = [time.astimezone(timezone.utc) for time in columns["timestamp"]]
        assert columns["day"] == [time.date() for time in times]
        assert columns["hour"] == [time.hour for time in times]
        assert len({*zip(columns["day"], columns["hour"], strict=True)}) >= HOURS
    return len(places)
