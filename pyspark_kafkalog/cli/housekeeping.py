"""What keeps a load's files few, for ``kafkalog compact``, ``gc`` and ``load --compact-every``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from pyspark_kafkalog.cli.arguments import duration_ms
from pyspark_kafkalog.cli.terminal_output import counted, size, words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.ledger.ledger import Ledger

KEPT_FOR = "7d"
"""How long files stay that nobody needs, so that running readers can finish."""


def collect_garbage(
    ledger: Ledger,
    keep: int,
    older_than: str,
    catalog: str | None = None,
    *,
    dry_run: bool = False,
    is_quiet: bool = False,
) -> None:
    """Do what `gc` does, and tell it; with ``is_quiet`` only what was removed."""
    from pyspark_kafkalog.clock import SYSTEM_CLOCK
    from pyspark_kafkalog.ledger.ledger import clean
    from pyspark_kafkalog.loads.lake_cleaning import removable_lake_files
    from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files

    now_ms, age_ms = SYSTEM_CLOCK.time_ms(), duration_ms(older_than, "--older-than")
    with nullcontext() if dry_run else ledger.hold("gc"):
        found = clean(ledger, keep, dry_run=dry_run)
        tables = removable_files(ledger, now_ms - age_ms)
        tables += removable_lake_files(ledger, now_ms - age_ms, catalog)
        if not dry_run:
            for table in tables:
                remove_files(ledger, table, now_ms)
    for one in found:
        if one.kept:
            words(f"load {one.number} keeps its receipts: {one.kept}")
    gone = [one for one in found if not one.kept]
    receipts, marks = sum(one.receipts for one in gone), sum(one.marks for one in gone)
    done = "would remove" if dry_run else "removed"
    if gone or not is_quiet:
        what = f"{counted(receipts, 'receipt')} and {counted(marks, 'mark')}"
        typer.echo(f"{done} {what} of {counted(len(gone), 'load')}")
    for table in tables:
        if table.refused and not is_quiet:
            words(f"{table.location}: nothing is removed there: {table.refused}")
        if count := len(table.unlisted) + len(table.replaced):
            typer.echo(f"{done} {counted(count, 'file')} with {size(table.bytes)} from {table.location}")
        if table.young_count and not is_quiet:
            young = counted(table.young_count, "file")
            words(f"{table.location}: {young} younger than {older_than} not removed")


def compact_tables(
    spark: SparkSession | None, paths: Iterable[str], offsets: str, target_bytes: int | None = None
) -> None:
    """Compact the tables at these paths, by default as `compact` does, with a line for each commit."""
    from pyspark_kafkalog.loads.compaction import compact as compact_files

    how = {} if target_bytes is None else {"target_bytes": target_bytes}
    for path in paths:
        commit = compact_files(spark, path, offsets, **how)
        if commit is not None:
            (new,) = commit.outputs
            typer.echo(f"commit {commit.number}: {counted(len(new.files), 'file')} in {new.place}")
