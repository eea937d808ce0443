"""``kafkalog.compact()``: rewrites the small files of many loads into a few large ones, in one commit. It
records which loads' files it replaces; `kafkalog gc` removes these later, so that running readers can finish.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.archive import Live, live_outputs
from pyspark_kafkalog.ledger.commit import PARQUET, Commit, LoadOutput
from pyspark_kafkalog.ledger.receipts import join_ranges
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.engines.engine import Engine
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine
from pyspark_kafkalog.loads.engines.spark_engine import SparkEngine
from pyspark_kafkalog.loads.manifest import write_manifests
from pyspark_kafkalog.loads.reading import option_texts, table_of
from pyspark_kafkalog.loads.writers.merge_tasks import MergeTasks, merge_files, merged_schema, merges_of
from pyspark_kafkalog.loads.writers.parquet_files import TARGET_FILE_BYTES, Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def compact(
    spark: SparkSession | None,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    *,
    target_bytes: int = TARGET_FILE_BYTES,
    **options: object,
) -> Commit | None:
    """Rewrite the small files of the loads in effect below ``path`` into files of about ``target_bytes``.

    Readers see the same rows, with the same ``load``. Skips loads whose files average at least half that
    size, or mostly have no others to merge with. Returns the commit, or None if no file would be saved.
    ``offsets`` is the directory of the ledgers if they were moved. Tasks rewrite Parquet, in Spark or in
    processes of this machine; with ``options`` of its writer, and ORC, Spark does.

    Raises `LoadBusy` while a load runs, `LoadError` if the path does not belong to a load, a plan is pending
    or the row counts differ, and `LostRace` if another driver committed meanwhile.
    """
    texts = option_texts(options, compact)
    if target_bytes <= 0:
        raise InvalidConfig(f"target_bytes is {target_bytes}; it must be a number of bytes")
    store = output_files.table_store(path)
    where = store.location
    ledger = output_files.ledger_of(where, offsets, spark)
    owner = output_files.read_claim(where)
    assert owner is not None  # ledger_of found it
    output_files.check_not_copied(owner, ledger)
    if spark is None and (texts or owner.format != PARQUET):
        what = ", ".join(texts) or f"{owner.format} files"
        raise InvalidConfig(f"{what}: Spark writes this, and spark is None")
    with ledger.hold("compact"):
        head = ledger.head()
        chosen = small_outputs(live_outputs(ledger.lineage(), owner.path), target_bytes)
        if head is None or not chosen:
            return None
        number = head.number + 1
        if ledger.pending() is not None:
            raise LoadError(f"load {number} of {ledger.location} is pending: load first, then compact")
        run = uuid.uuid4().hex
        inside = output_files.compaction_directory(number, run)
        rows = sum(file.rows for _, out in chosen for file in out.files)
        if spark is None or (owner.format == PARQUET and not texts):
            engine = LocalEngine() if spark is None else SparkEngine(spark)
            notes = {"kafkalog.load": ledger.name, "kafkalog.number": str(number)}
            written = _merged(engine, store, chosen, inside, target_bytes, notes)
        else:
            written = _rewritten(spark, store, owner.format, chosen, inside, target_bytes, texts)
        if written.rows != rows:
            raise LoadError(
                f"{where}/{inside} holds {written.rows} rows, and the files that it should replace hold "
                f"{rows}: nothing was committed. `kafkalog verify` looks for damaged files"
            )
        replaced = join_ranges((commit.number, commit.number + 1) for commit, _ in chosen)
        output = replace(written, path=owner.path, replaces=replaced)
        commit = ledger.compact(head, [output], run)
        write_manifests(ledger, commit)
        before = sum(len(out.files) for _, out in chosen)
        log.info("%s: commit %d has %d files for %d", where, commit.number, len(written.files), before)
        return commit


def _merged(
    engine: Engine, store: FileStore, chosen: Live, inside: str, target_bytes: int, notes: dict[str, str]
) -> LoadOutput:
    merges = merges_of(chosen, target_bytes)
    schema = merged_schema(store, [file for merge in merges for file in merge.files])
    layout = Layout(target_file_bytes=target_bytes)
    return merge_files(engine, MergeTasks(store.url, inside, tuple(merges), schema, layout, notes))


def _rewritten(
    spark: SparkSession,
    store: FileStore,
    format: str,
    chosen: Live,
    inside: str,
    target_bytes: int,
    options: Mapping[str, str],
) -> LoadOutput:
    files = [f"{out.directory}/{file.name}" for _, out in chosen for file in out.files]
    sizes = [file for _, out in chosen for file in out.files]
    rows, size = sum(file.rows for file in sizes), sum(file.bytes for file in sizes)
    # As strings: 007 as a number would be written as 7.
    frame = table_of(spark, store.url, format, files, {"mergeSchema": "true"}, guess=False)
    columns = output_files.partition_columns(chosen[0][1]) or ()
    parts = [frame[f"`{name.replace('`', '``')}`"] for name in columns]
    frame = frame.repartition(*parts) if parts else frame.coalesce(-(-size // target_bytes))
    ours = {
        "partitionOverwriteMode": "static",
        "maxRecordsPerFile": str(max(1, rows * target_bytes // size)),
    }
    writer = frame.write.mode("overwrite").options(**ours, **options)
    writer.partitionBy(*columns).format(format).save(f"{store.url}/{inside}")
    return output_files.written_files(store.location, inside)


def small_outputs(live: Live, target_bytes: int) -> Live:
    small = [
        (commit, out)
        for commit, out in live
        if out.files and sum(file.bytes for file in out.files) * 2 < target_bytes * len(out.files)
    ]
    crowded = Counter(_directory(file.name) for _, out in small for file in out.files)
    chosen = [
        (commit, out)
        for commit, out in small
        if sum(crowded[_directory(file.name)] > 1 for file in out.files) * 2 >= len(out.files)
    ]
    before = sum(len(out.files) for _, out in chosen)
    sizes: Counter[str] = Counter()
    for _, out in chosen:
        for file in out.files:
            sizes[_directory(file.name)] += file.bytes
    after = sum(max(1, -(-size // target_bytes)) for size in sizes.values())
    return chosen if before > after else []


def _directory(name: str) -> str:
    return name.rpartition("/")[0]
