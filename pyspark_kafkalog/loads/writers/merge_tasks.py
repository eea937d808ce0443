"""Tasks that rewrite small Parquet files of a table into larger ones, with the number of each row's load."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.archive import Live
from pyspark_kafkalog.ledger.commit import PARQUET, LoadOutput
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore, side_by_side
from pyspark_kafkalog.loads.arrow_reading import LOAD, batches_of, schema_of
from pyspark_kafkalog.loads.engines.engine import Engine, Tell
from pyspark_kafkalog.loads.output_files import SPARK_SCHEMA_KEY
from pyspark_kafkalog.loads.table_schema import simple_types, storable, types_of
from pyspark_kafkalog.loads.writers.attempts import ended_attempts, files_noted, files_of, line_of, lines_of
from pyspark_kafkalog.loads.writers.parquet_files import Layout, ParquetFiles, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class Merge(msgspec.Struct, frozen=True):
    """Files, of about the size of one new file, below one ``directory`` of partitions; perhaps empty."""

    directory: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class MergeTasks:
    """Pickled into each task. ``inside`` is the compaction's directory in the table at ``place``."""

    place: str
    inside: str
    merges: tuple[Merge, ...]
    schema: pa.Schema
    layout: Layout
    notes: dict[str, str]

    def __call__(self, index: int, tell: Tell) -> list[str]:  # noqa: ARG002
        """Do merge number ``index``; nobody is told how far it is."""
        merge, attempt = self.merges[index], uuid.uuid4().hex
        stem = f"part-{index:05d}-{attempt}"
        stem = f"{merge.directory}/{stem}" if merge.directory else stem
        store = open_store(self.place)
        files = ParquetFiles(store, self.inside, stem, self.schema, self.layout, self.notes)
        try:
            for name in merge.files:
                for batch in batches_of(store, PARQUET, name, self.schema):
                    files.add(batch)
            files.close()
        finally:
            files.abort()
        lines = lines_of(index, attempt, files.finished)
        return [*lines, line_of(index, attempt, end=len(lines))]


def merges_of(live: Live, target_bytes: int) -> list[Merge]:
    """The files of these outputs, oldest first, in groups of at most ``target_bytes``, or one file."""
    found: list[Merge] = []
    waiting: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}

    def full(directory: str) -> None:
        found.append(Merge(directory, tuple(waiting.pop(directory))))
        del sizes[directory]

    for _, out in live:
        for file in out.files:
            directory = file.name.rpartition("/")[0]
            if directory in waiting and sizes[directory] + file.bytes > target_bytes:
                full(directory)
            waiting.setdefault(directory, []).append(f"{out.directory}/{file.name}")
            sizes[directory] = sizes.get(directory, 0) + file.bytes
    for directory in list(waiting):
        full(directory)
    return found


def merged_schema(store: FileStore, files: Sequence[str]) -> pa.Schema:
    """All columns of the files, those of the oldest first, and ``load``. Raises `LoadError` if two files have
    one column with two types, or one that only Spark can write.
    """
    import pyarrow as pa

    columns: dict[str, pa.Field] = {}
    for name, found in zip(files, side_by_side(store, lambda one: _stored(store, one), files), strict=True):
        for field in found:
            known = columns.setdefault(field.name, field.remove_metadata())
            if known.type != field.type:
                raise LoadError(
                    f"{store.location}/{name} has column {field.name} as {field.type}, and older files as "
                    f"{known.type}: they cannot be one file"
                )
    columns.pop(LOAD, None)
    return pa.schema([*columns.values(), pa.field(LOAD, pa.int32())])


def _stored(store: FileStore, name: str) -> pa.Schema:
    found = schema_of(store, PARQUET, name)
    stored = storable(found.remove_metadata())
    noted = (found.metadata or {}).get(SPARK_SCHEMA_KEY)
    if noted is not None and simple_types(noted.decode()) != types_of(stored):
        raise LoadError(
            f"{store.location}/{name} has types that only Spark can write: give a session and options of its "
            "writer, for example compression='zstd'"
        )
    return stored


def merge_files(engine: Engine, tasks: MergeTasks) -> LoadOutput:
    """Run the tasks."""
    lines, files = engine.run(tasks, len(tasks.merges)), list[WrittenFile]()
    for index, attempts in enumerate(ended_attempts(lines, len(tasks.merges))):
        if len(attempts) != 1 or attempts[0][-1]["end"] != len(attempts[0]) - 1:
            raise LoadError(
                f"{tasks.place}: {len(attempts)} tasks merged group {index} of files; it must be one"
            )
        files += files_of(attempts[0])
    rows = sum(file.rows for file in files)
    return LoadOutput(tasks.place, tasks.inside, files_noted(files), PARQUET, wrote=rows)
