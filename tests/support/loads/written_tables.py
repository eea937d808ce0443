"""Loads into files without Spark: whole ones, and what lies beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.output_files import claim_path, written_files
from tests.support.ledger.plans import P0, P1, begun, facts, read_all

OLD_MS = 1_000_000
"""When files were written, since 1970."""


def write(table: Path, *names: str, at_ms: int = OLD_MS, rows: Sequence[int] = (1, 2)) -> None:
    for name in names:
        file = table / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": list(rows)}), file)
        os.utime(file, (at_ms / 1000, at_ms / 1000))


def load(ledger: Ledger, table: Path, directory: str, *names: str, rows: Sequence[int] = (1, 2)) -> Commit:
    """The next load, which wrote these files in ``directory``."""
    claim_path(table, ledger)
    number = ledger.head_number() + 1
    plan = begun(ledger, {P0: facts(0, 10 * number), P1: facts(0, 4)})
    read_all(ledger, plan)
    write(table, *(f"{directory}/{name}" for name in names), rows=rows)
    return ledger.commit(plan, mode="dir", run="won", outputs=[written_files(table, directory)])
