"""A table of Delta or Iceberg that tasks write: what both have in common. Files lie in the table's place
first; then one commit of the table names them, with the record of their plan.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.table_schema import types_of
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.lake_table import SHORT_IDENTITY, LakeTable, TableCommit
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_files import TaskWriter

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_PAUSE_S = 0.2


class Destination(NamedTuple):
    """Where a table's files go, and how they are written."""

    store: FileStore
    schema: pa.Schema
    layout: Layout


class TaskLakeTable(LakeTable):
    """*Not thread-safe.* A ``handle`` is the library's object for the table as it was when it was opened."""

    def __init__(self, table: str, layout: Layout, functions: RowFunctions, max_dead: float | None) -> None:
        """``max_dead`` is as in `DeadLimit`."""
        super().__init__(table)
        self._layout = layout
        self._tasks = TaskWriter(layout, functions, max_dead)

    @property
    def _partitioning(self) -> Partitioning:
        return self._layout.partitioning

    def check(self, work: Work) -> None:
        super().check(work)
        self._tasks.check(work)
        rows = self._rows(work)
        types = types_of(rows)
        self._partitioning.check(types)
        self._partitioning.check_types(rows)
        handle = self._handle()
        if handle is not None:
            self._check_table(handle, types)
            self._check_columns(types | self._partitioning.made_types, self._columns_of(handle))

    def _check_columns(self, ours: dict[str, str], theirs: dict[str, str]) -> None:
        for name, kind in ours.items():
            if name not in theirs:
                raise LoadError(f"{self.table} has no column {name}; it has {', '.join(theirs)}")
            if theirs[name] != kind:
                raise LoadError(f"{self.table}: column {name} is {theirs[name]}, and this load has {kind}")

    def find(self, work: Work) -> tuple[LoadOutput, ...]:
        found = super().find(work)
        for one in found:
            self._tasks.find_dead(work, str(one.evidence["run"]))
        return (*self._tasks.dead, *found) if found else ()

    def _commits(self, _work: Work) -> list[TableCommit]:
        handle = self._handle()
        return [] if handle is None else list(self._commits_of(handle))

    def _append(self, work: Work, record: str) -> None:
        handle = self._handle()
        if handle is None:
            self._create(self._rows(work))
            handle = self._present()
        to = self._destination(handle, self._rows(work))
        # No other run's files have such names, so those of failed attempts can be told from others'.
        stem = f"{name_of_files(work.ledger)}{work.plan.number:08d}-{work.run}"
        written = self._tasks.write(work, to.store, schema=to.schema, layout=to.layout, stem=stem)
        self._commit(work, record, written.files, to)

    def files_named(self) -> tuple[FileStore, set[str]] | None:
        """Where the table's files are, and the names, without directories, of those that a version or
        snapshot has which can still be read; None without a table. Raises `LoadError`.
        """
        handle = self._handle()
        if handle is None:
            return None
        try:
            return self._place(handle), self._names(handle)
        except LoadError:
            raise
        except Exception as e:  # of whatever library reads the table
            raise LoadError(f"cannot read {self.table}: {told(e)}") from e

    def _commit(self, work: Work, record: str, files: tuple[WrittenFile, ...], to: Destination) -> None:
        """Look and commit with one handle, so that the commit is refused if another driver wrote the load in
        between. What fails in doubt is looked for before it is tried again.
        """
        for attempt in range(_ATTEMPTS):
            handle = self._present()
            if self._found(work, self._commits_of(handle)) is not None:
                return
            try:
                self._commit_files(handle, work, record, files, to)
            except LoadError:
                raise
            except self._doubtful as e:
                if attempt == _ATTEMPTS - 1:
                    raise LoadError(f"cannot commit to {self.table}: {told(e)}; the plan stays") from e
                log.warning("commit to %s is in doubt, looking again: %s", self.table, told(e))
                time.sleep(_PAUSE_S * attempt)
            else:
                return

    def _present(self) -> Any:
        handle = self._handle()
        if handle is None:
            raise LoadError(f"{self.table} is gone: another program removed it. The plan stays")
        return handle

    def _rows(self, work: Work) -> pa.Schema:
        """The schema of the load's rows."""
        return self._tasks.rows(work)

    @property
    @abstractmethod
    def _doubtful(self) -> tuple[type[Exception], ...]:
        """Errors after which a commit may have been made."""

    @abstractmethod
    def _handle(self) -> Any | None:
        """A fresh one; None without a table."""

    @abstractmethod
    def _commits_of(self, handle: Any) -> Iterable[TableCommit]:
        """The loads in the table's commits in effect, newest first."""

    @abstractmethod
    def _columns_of(self, handle: Any) -> dict[str, str]:
        """The table's columns, with Spark's names of their types."""

    @abstractmethod
    def _check_table(self, handle: Any, types: dict[str, str]) -> None:
        """Raise `LoadError` if tasks cannot write this table, or not rows of these types divided so."""

    @abstractmethod
    def _create(self, rows: pa.Schema) -> None:
        """Create the table, unless another driver did."""

    @abstractmethod
    def _place(self, handle: Any) -> FileStore:
        """Where its files are."""

    @abstractmethod
    def _names(self, handle: Any) -> set[str]:
        """As `files_named`."""

    @abstractmethod
    def _destination(self, handle: Any, rows: pa.Schema) -> Destination: ...

    @abstractmethod
    def _commit_files(
        self, handle: Any, work: Work, record: str, files: tuple[WrittenFile, ...], to: Destination
    ) -> None:
        """Add the files to the table as the handle has it, in one commit that holds ``record``."""


def name_of_files(ledger: Ledger) -> str:
    """What the names of a ledger's files begin with, before the number of their load."""
    return f"kafkalog-{ledger.identity()[:SHORT_IDENTITY]}-"


def told(error: BaseException) -> str:
    """An error of a library on one line, without secrets."""
    return masked(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
