"""What the driver accepts of what tasks say they wrote."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import IncompleteLoad, InvalidConfig, ReceiptMismatch
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.loads.writers.file_tasks import accepted, with_schema
from pyspark_kafkalog.loads.writers.parquet_files import WrittenFile
from tests.support.ledger.plans import begun


@pytest.fixture
def plan(ledger: Ledger) -> Plan:
    return begun(ledger)


def said(plan: Plan, attempt: str = "a", rows: int = 3, **changed: Any) -> list[str]:
    """A file and an end for each range."""
    lines: list[str] = []
    for index, planned in enumerate(plan.ranges):
        file = WrittenFile(f"{index}-{attempt}", 100, rows, 7, (planned.start, planned.end - 1), {})
        span = {"start": planned.start, "end": planned.end}
        end = {"files": 1, "rows": rows, "records": rows, **span, **changed}
        lines.append(json.dumps({"range": index, "attempt": attempt, "file": msgspec.to_builtins(file)}))
        lines.append(json.dumps({"range": index, "attempt": attempt, "end": end}))
    return lines


def test_files_of_one_attempt_for_each_range_are_taken(plan: Plan) -> None:
    assert len(plan.ranges) > 1
    found = accepted(said(plan), plan, is_whole=True)
    assert [file.name for file in found.files] == [f"{n}-a" for n in range(len(plan.ranges))]
    assert found.rows == 3 * len(plan.ranges)
    unfinished = said(plan, "dead")[:1]  # it wrote a file and no end
    assert accepted([*unfinished, *said(plan)], plan, is_whole=True) == found


@pytest.mark.parametrize("whole", [True, False])
def test_ranges_that_are_not_told_once_and_to_their_end_are_no_load(plan: Plan, whole: bool) -> None:
    for lines, wrong in (
        (said(plan)[:-2], "was read to its end by 0 tasks; it must be one"),
        (said(plan)[:-1], "was read to its end by 0 tasks; it must be one"),
        (said(plan) + said(plan, "b"), "was read to its end by 2 tasks; it must be one"),
        (said(plan)[1:], "wrote 1 files, of which 0 are known"),
        (said(plan, end=1), r"its task read \[\d+, 1\) and wrote"),
        ([], "by 0 tasks"),
    ):
        with pytest.raises(IncompleteLoad, match=wrong):
            accepted(lines, plan, is_whole=whole)


def test_rows_are_those_that_were_read_unless_they_were_transformed(plan: Plan) -> None:
    with pytest.raises(ReceiptMismatch, match="its task read 4 records and wrote 3 rows and 0 dead letters"):
        accepted(said(plan, records=4), plan, is_whole=True)
    assert accepted(said(plan, records=4), plan, is_whole=False).rows == 3 * len(plan.ranges)
    letter = WrittenFile("dead", 10, 1, 7, None, {})
    line = json.dumps({"range": 0, "attempt": "a", "dead": msgspec.to_builtins(letter)})
    first, *others = said(plan, records=3)
    ends = [json.loads(one) for one in others]
    ends[0]["end"] |= {"files": 2, "records": 4}
    found = accepted([first, line, *map(json.dumps, ends)], plan, is_whole=True)
    assert (found.dead, len(found.files), found.rows) == ((letter,), len(plan.ranges), 3 * len(plan.ranges))


def test_a_transformation_that_changes_its_columns_is_told_which(plan: Plan) -> None:
    schema = pa.schema({"n": pa.int32(), "t": pa.string()})
    good = pa.record_batch({"n": pa.array([1], pa.int64()), "t": pa.array(["x"])})
    assert with_schema(good, schema).schema == schema
    with pytest.raises(InvalidConfig, match="returned columns n for some records and n, t for none"):
        with_schema(good.select(["n"]), schema)
    large = pa.record_batch({"n": pa.array([2**40]), "t": pa.array(["x"])})
    with pytest.raises(
        InvalidConfig, match="returned column n as int64 for some records and as int32 for none"
    ):
        with_schema(large, schema)
