"""A nightly load into a store and all that is done with its table, for `SparkProcess.call`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.manifest import FILES
from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files
from pyspark_kafkalog.loads.verification import verify_outputs

NAME = "nightly"


def nightly(spark: Any, *, root: str, by: list[str], options: dict[str, str]) -> dict[str, Any]:
    """One load below ``root``: values that are odd to the table, even ones set aside as dead letters."""
    with kafkalog.load(spark, name=NAME, offsets=f"{root}/_offsets", **options) as load:
        judged = load.df.selectExpr("*", "IF(int(string(value)) % 2 = 0, 'even', NULL) reason")
        good = load.dead_letters(judged)
        load.write_parquet(f"{root}/table", good, partition_by=by)
    commit = load.commit
    return {"number": None if commit is None else commit.number, **_state(spark, root)}


def died(spark: Any, *, root: str, by: list[str], options: dict[str, str]) -> None:
    """A load whose block fails after it wrote."""
    try:
        with kafkalog.load(spark, name=NAME, offsets=f"{root}/_offsets", **options) as load:
            load.write_parquet(f"{root}/table", partition_by=by)
            raise RuntimeError("killed")
    except RuntimeError:
        return


def aborted(spark: Any, *, root: str, by: list[str], options: dict[str, str]) -> dict[str, Any]:
    """A load whose write fails, and the directories that it leaves."""
    with (
        suppress(Exception),
        kafkalog.load(spark, name=NAME, offsets=f"{root}/_offsets", **options) as load,
    ):
        failing = load.df.selectExpr("*", "raise_error(topic) failed")
        load.write_parquet(f"{root}/table", failing, partition_by=by)
    return directories(spark, root=root)


def directories(_spark: Any, *, root: str) -> dict[str, Any]:
    found = sorted(one.name for one in open_store(f"{root}/table").directories(""))
    return {"directories": [name.rpartition("=")[0] for name in found]}


def compacted(spark: Any, *, root: str) -> dict[str, Any]:
    """What a compaction put together."""
    commit = kafkalog.compact(spark, f"{root}/table")
    assert commit is not None
    (output,) = commit.outputs
    return {"number": commit.number, "files": len(output.files), **_state(spark, root)}


def cleaned(spark: Any, *, root: str) -> dict[str, Any]:
    """How many files gc removed, whatever their age."""
    ledger = kafkalog.Ledger.at(f"{root}/_offsets", NAME)
    later = SYSTEM_CLOCK.time_ms() + 60_000
    found = removable_files(ledger, later)
    for one in found:
        remove_files(ledger, one, later)
    return {"unlisted": sum(len(one.unlisted) for one in found),
            "replaced": sum(len(one.replaced) for one in found), **_state(spark, root)}  # fmt: skip


def _state(spark: Any, root: str) -> dict[str, Any]:
    """What readers see, and what verify finds."""
    ledger = kafkalog.Ledger.at(f"{root}/_offsets", NAME)
    table = kafkalog.read_load(spark, f"{root}/table")
    listed = (open_store(f"{root}/table").read(FILES) or b"").decode().splitlines()
    dead = kafkalog.read_dead(spark, NAME, offsets=f"{root}/_offsets")
    return {
        "rows": _values(table, "load"),
        "listed": sorted(row.n for row in spark.read.parquet(*listed).selectExpr(_VALUE).collect()),
        "dead": _values(dead, "load"),
        "findings": ledger.verify() + verify_outputs(ledger.lineage()),
    }


_VALUE = "int(string(value)) n"


def _values(frame: Any, column: str) -> list[list[int]]:
    return sorted([row[column], row.n] for row in frame.selectExpr(column, _VALUE).collect())
