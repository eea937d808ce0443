"""Parquet files that the tasks of a load write themselves: the driver's side of `file_tasks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.errors import InvalidConfig, LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import PARQUET, LoadOutput
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore, side_by_side
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.range_tasks import RangeTasks
from pyspark_kafkalog.loads.table_schema import storable, types_of
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.attempts import files_noted
from pyspark_kafkalog.loads.writers.dead_files import DeadFiles
from pyspark_kafkalog.loads.writers.file_tasks import FileTasks, Written, accepted
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class TaskWriter:
    """Lets the tasks of one load write its rows as Parquet files. *Not thread-safe.*"""

    dead: tuple[LoadOutput, ...]
    """The dead letters of what was written or found last."""

    def __init__(self, layout: Layout, functions: RowFunctions, max_dead: float | None = None) -> None:
        """``max_dead`` is as in `DeadLimit`."""
        self._layout, self._functions = layout, functions
        self._rows: pa.Schema | None = None
        if functions.decode is None and max_dead is not None:
            raise InvalidConfig("max_dead= limits the dead letters of decode=, which is missing")
        self._letters = None if functions.decode is None else DeadFiles(max_dead)
        self.dead = ()

    def check(self, work: Work) -> None:
        """Raise `InvalidConfig` or `LoadError` if tasks cannot write."""
        if self._letters is not None:
            self._letters.check(work)

    def find_dead(self, work: Work, run: str) -> None:
        """Dead letters of an earlier run whose rows are there already."""
        self.dead = () if self._letters is None else self._letters.found(work, run)

    def rows(self, work: Work) -> pa.Schema:
        """The schema of the rows. `InvalidConfig` if a column has a type that Spark has not."""
        if self._rows is None:
            source = arrow_schema(work.source.row_columns, COLUMNS_07)
            self._rows = storable(self._functions.schema(source))
        return self._rows

    def write(
        self,
        work: Work,
        store: FileStore,
        inside: str = "",
        *,
        schema: pa.Schema | None = None,
        layout: Layout | None = None,
        stem: str = "part",
    ) -> Written:
        """The files below ``inside`` of the attempts that count. ``stem`` is what their names begin with;
        ``schema`` and ``layout`` are those of an existing table.
        """
        letters = self._letters
        tasks = FileTasks(
            ranges=RangeTasks.of(work, "offset", *(letters.columns(work) if letters else ())),
            columns=work.source.row_columns,
            place=store.url,
            directory=inside,
            stem=stem,
            schema=self.rows(work) if schema is None else schema,
            functions=self._functions,
            layout=layout or self._layout,
            dead=None if letters is None else letters.place(work),
        )
        lines = work.engine.run(tasks, len(work.plan.ranges))
        written = accepted(lines, work.plan, is_whole=self._functions.transform is None)
        _check_there(store, inside, written.files)
        if tasks.dead is not None and letters is not None:
            _check_there(open_store(tasks.dead.url), tasks.dead.directory, written.dead)
            self.dead = letters.accept(work, files_noted(written.dead))
        return written


class TaskFiles:
    """A `FileWriter`. *Not thread-safe.*"""

    format = PARQUET

    def __init__(self, layout: Layout, functions: RowFunctions, max_dead: float | None = None) -> None:
        self._tasks = TaskWriter(layout, functions, max_dead)
        self.partitioning = layout.partitioning

    def check(self, work: Work) -> None:
        self._tasks.check(work)

    def types(self, work: Work) -> Mapping[str, str]:
        return types_of(self._tasks.rows(work))

    def write(self, work: Work, store: FileStore, inside: str) -> tuple[LoadOutput, ...]:
        self.partitioning.check_types(self._tasks.rows(work))
        written = self._tasks.write(work, store, inside)
        owner = output_files.read_claim(store.location)
        if owner is None:
            raise LoadError(f"no load owns {store.location}: {output_files.CLAIM} is missing")
        return (
            *self._tasks.dead,
            LoadOutput(owner.path, inside, files_noted(written.files), PARQUET, wrote=written.rows),
        )


def _check_there(store: FileStore, inside: str, files: Iterable[WrittenFile]) -> None:
    """Whether the driver sees what the tasks wrote, each on its machine."""

    def lacks(file: WrittenFile) -> bool:
        found = store.file(f"{inside}/{file.name}" if inside else file.name)
        return found is None or found.bytes != file.bytes

    wanted = list(files)
    gone = [file for file, is_gone in zip(wanted, side_by_side(store, lacks, wanted), strict=True) if is_gone]
    if gone:
        raise ReceiptMismatch(
            f"tasks wrote {len(wanted)} files, and {len(gone)} are not at {store.location}/{inside}, first "
            f"{gone[0].name}: driver and executors must share that place, and nothing else may remove files "
            "there. The plan stays: the next load replays it"
        )
