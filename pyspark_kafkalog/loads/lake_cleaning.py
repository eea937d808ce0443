"""Finds files in tables of Delta and Iceberg that tasks of a load wrote and no version or snapshot has: of
runs that died, or that another one overtook.
"""

from __future__ import annotations

import re

from pyspark_kafkalog.errors import KafkaError, LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.output_cleaning import Removable
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.delta_table import TaskDeltaTable
from pyspark_kafkalog.loads.writers.iceberg_table import TaskIcebergTable
from pyspark_kafkalog.loads.writers.parquet_files import Layout
from pyspark_kafkalog.loads.writers.task_lake_table import TaskLakeTable, name_of_files


def removable_lake_files(ledger: Ledger, before_ms: int, catalog: object | None = None) -> list[Removable]:
    """Removable files by table: written before ``before_ms``, under names of this ledger's runs. ``catalog``
    has the Iceberg tables, as for `Load.write_iceberg`. The caller holds the ledger's lock.
    """
    commits = ledger.history()
    places = dict.fromkeys((out.format, out.path) for commit in commits for out in commit.outputs)
    tables = [(format, path) for format, path in places if format in ("delta", "iceberg")]
    if tables and ledger.pending() is not None:
        return [
            Removable(path, refused="a plan is pending, and its files may be there") for _, path in tables
        ]
    found = []
    for format, path in tables:
        try:
            table = _table(format, path, catalog)
            found += [] if table is None else _orphans(table, ledger, before_ms)
        except KafkaError as e:
            found.append(Removable(path, refused=str(e)))
    return found


def _table(format: str, path: str, catalog: object | None) -> TaskLakeTable | None:
    if format == "delta":  # a name is one of Spark's catalog, where only Spark writes
        return TaskDeltaTable(path, Layout(), RowFunctions()) if "/" in path else None
    if catalog is None:
        raise LoadError("it is an Iceberg table: say which catalog has it")
    return TaskIcebergTable(path, catalog, Layout(), RowFunctions())


def _orphans(table: TaskLakeTable, ledger: Ledger, before_ms: int) -> list[Removable]:
    there = table.files_named()
    if there is None:
        return []
    store, named = there
    ours = re.compile(rf"{re.escape(name_of_files(ledger))}[0-9]{{8,}}-.*\.parquet")
    files = [(file, file.name.rpartition("/")[2]) for file in store.files("")]
    unnamed = [file for file, name in files if ours.fullmatch(name) and name not in named]
    old = sorted(file for file in unnamed if file.modified_ms < before_ms)
    return [
        Removable(
            store.location,
            unlisted=tuple(file.name for file in old),
            bytes=sum(file.bytes for file in old),
            young_count=len(unnamed) - len(old),
        )
    ]
