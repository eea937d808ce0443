"""Dead letters that tasks write beside a table's files: the driver's side."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.decoding.arrow_rows import REASON
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import PARQUET, LoadOutput, OutputFile
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.dead_letters import ORIGINAL, WHERE_THERE, DeadLimit, path_of
from pyspark_kafkalog.loads.file_table import Work

if TYPE_CHECKING:
    import pyarrow as pa

_LIST = "_kafkalog_dead.json"
"""The files of a run's dead letters, durable before a table's commit that lacks their records."""


class DeadPlace(NamedTuple):
    """Where a task's dead letters go, and their columns: the original ones and the reason."""

    url: str
    directory: str
    schema: pa.Schema


class DeadFiles:
    """*Not thread-safe.*"""

    def __init__(self, max_dead: float | None) -> None:
        self._limit = DeadLimit(max_dead)

    def check(self, work: Work) -> None:
        """Raise `InvalidConfig` or `LoadError` if tasks cannot write them."""
        if not work.has_receipts:
            raise InvalidConfig(
                "decode= writes dead letters beside the ledger, which tasks cannot reach: receipts=False"
            )
        owner = output_files.claim_path(path_of(work.ledger), work.ledger)
        if any(done.path == owner.path for done in work.before):
            raise LoadError(
                "dead letters of this load were written in this block already: decode once, and write that"
            )

    def columns(self, work: Work) -> tuple[str, ...]:
        return (*ORIGINAL, *(name for name in WHERE_THERE if name in work.source.row_columns))

    def place(self, work: Work) -> DeadPlace:
        import pyarrow as pa

        store = output_files.table_store(path_of(work.ledger))
        columns = arrow_schema(self.columns(work), COLUMNS_07)
        return DeadPlace(
            store.url, self._directory(work, work.run), columns.append(pa.field(REASON, pa.string()))
        )

    def accept(self, work: Work, files: tuple[OutputFile, ...]) -> tuple[LoadOutput, ...]:
        """The dead letters of this run, if there are any. Raises `TooManyDead`."""
        if not files:
            return ()
        output = self._output(work, work.run, files)
        self._limit.check(work, output)
        listed = json.dumps([asdict(file) for file in files], separators=(",", ":"))
        store = output_files.table_store(path_of(work.ledger))
        store.create(f"{output.directory}/{_LIST}", listed.encode())
        return (output,)

    def found(self, work: Work, run: str) -> tuple[LoadOutput, ...]:
        """Those of an earlier run whose rows are in a table already."""
        store = output_files.table_store(path_of(work.ledger))
        listed = store.read(f"{self._directory(work, run)}/{_LIST}")
        if listed is None:
            return ()
        return (self._output(work, run, tuple(OutputFile(**one) for one in json.loads(listed))),)

    def _output(self, work: Work, run: str, files: tuple[OutputFile, ...]) -> LoadOutput:
        owner = output_files.read_claim(path_of(work.ledger))
        if owner is None:
            raise LoadError(f"no load owns {path_of(work.ledger)}: {output_files.CLAIM} is missing")
        rows = sum(file.rows for file in files)
        return LoadOutput(owner.path, self._directory(work, run), files, PARQUET, wrote=rows)

    def _directory(self, work: Work, run: str) -> str:
        return output_files.load_directory(work.plan.number, run)
