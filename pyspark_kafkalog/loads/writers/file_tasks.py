"""Tasks that fetch, decode and write Parquet files, and what the driver accepts of them: records never enter
the JVM. A task says a line for each file, and a last one that it read its range to the end: by then its files
are durable, and so is its receipt.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pyspark_kafkalog.errors import IncompleteLoad, InvalidConfig, ReceiptMismatch
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.engines.engine import Tell
from pyspark_kafkalog.loads.range_tasks import RangeTasks
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.attempts import ended_attempts, files_of, line_of, lines_of
from pyspark_kafkalog.loads.writers.dead_files import DeadPlace
from pyspark_kafkalog.loads.writers.parquet_files import Layout, ParquetFiles, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


_DEAD = "dead"
_DEAD_HELD_BYTES = 16 << 20


@dataclass(frozen=True)
class FileTasks:
    """Pickled into each task. ``place`` is the table's URL, ``directory`` the load's in it. ``schema`` is
    that of the rows, which ``functions`` make of ``columns``; the tasks of ``ranges`` also read the offset
    and what ``dead`` letters have, which there are only where records are decoded.
    """

    ranges: RangeTasks
    columns: tuple[str, ...]
    place: str
    directory: str
    stem: str
    schema: pa.Schema
    functions: RowFunctions
    layout: Layout
    dead: DeadPlace | None

    def __call__(self, index: int, tell: Tell) -> list[str]:
        """Write the files of range ``index``."""
        ranges, attempt = self.ranges, uuid.uuid4().hex
        planned = ranges.parts[index].planned
        notes = {
            "kafkalog.load": ranges.load_name,
            "kafkalog.number": str(ranges.plan.number),
            "kafkalog.partition": str(planned.key),
        }
        stem = f"{self.stem}-{index:05d}-{attempt}"
        is_sorted = self.functions.is_plain and "offset" in self.schema.names
        files = ParquetFiles(
            open_store(self.place), self.directory, stem, self.schema, self.layout, notes, is_sorted=is_sorted
        )
        letters = (
            None if self.dead is None else dead_letter_files(self.dead, f"part-{index:05d}-{attempt}", notes)
        )

        def write(batch: pa.RecordBatch) -> int:
            span = _span(batch)
            made, reasons = self.functions.of(batch.select(self.columns))
            for rows in made:
                files.add(rows if rows.schema.equals(self.schema) else with_schema(rows, self.schema), span)
            if letters is not None and reasons is not None:
                letters.add(_dead(batch, reasons, letters.schema), span)
            return sum(rows.num_rows for rows in made)

        try:
            receipt, count = ranges.read(index, write, tell, run=ranges.run)
            files.close()
            if letters is not None:
                letters.close()
        finally:
            files.abort()
            if letters is not None:
                letters.abort()
        ranges.leave(receipt, index)
        dead = [] if letters is None else letters.finished
        lines = [*lines_of(index, attempt, files.finished), *lines_of(index, attempt, dead, _DEAD)]
        span = {"start": planned.start, "end": planned.end}
        end = {"files": len(lines), "rows": count, "records": receipt.records, **span}
        return [*lines, line_of(index, attempt, end=end)]


def dead_letter_files(dead: DeadPlace, stem: str, notes: Mapping[str, str]) -> ParquetFiles:
    return ParquetFiles(
        open_store(dead.url),
        dead.directory,
        stem,
        dead.schema,
        Layout(),
        notes,
        is_sorted=True,
        most_held_bytes=_DEAD_HELD_BYTES,
    )


def _dead(batch: pa.RecordBatch, reasons: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    original = batch.select(schema.names[:-1]).columns
    return pa.RecordBatch.from_arrays([*original, reasons], schema=schema).filter(reasons.is_valid())


def _span(batch: pa.RecordBatch) -> tuple[int, int]:
    offsets = batch.column("offset")
    return offsets[0].as_py(), offsets[-1].as_py()


def with_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a transformation with the schema that the driver found by an empty batch. `InvalidConfig` if
    they do not fit.
    """
    import pyarrow as pa

    if rows.schema.names != schema.names:
        raise InvalidConfig(
            f"transform= returned columns {', '.join(rows.schema.names)} for some records and "
            f"{', '.join(schema.names)} for none: it must always return the same"
        )
    for name, found in zip(schema.names, rows.columns, strict=True):
        try:
            found.cast(schema.field(name).type)
        except pa.ArrowException as e:
            raise InvalidConfig(
                f"transform= returned column {name} as {found.type} for some records and as "
                f"{schema.field(name).type} for none: {e}"
            ) from None
    return rows.cast(schema)


class Written(msgspec.Struct, frozen=True):
    """What the tasks of a plan wrote together; ``dead`` are files of dead letters."""

    files: tuple[WrittenFile, ...]
    dead: tuple[WrittenFile, ...]
    rows: int


def accepted(lines: Iterable[str], plan: Plan, *, is_whole: bool) -> Written:
    """The files of one attempt for each range. Raises `IncompleteLoad` if the attempts do not tile the
    plan, and `ReceiptMismatch` if, with ``is_whole``, their rows and dead letters are not what they read.
    """
    files: list[WrittenFile] = []
    letters: list[WrittenFile] = []
    rows = 0
    said = ended_attempts(lines, len(plan.ranges))
    for planned, attempts in zip(plan.ranges, said, strict=True):
        where = f"load {plan.number}: {planned.key} [{planned.start}, {planned.end})"
        if len(attempts) != 1:
            raise IncompleteLoad(f"{where} was read to its end by {len(attempts)} tasks; it must be one")
        *written, last = attempts[0]
        end = last["end"]
        if (end["start"], end["end"], end["files"]) != (planned.start, planned.end, len(written)):
            raise IncompleteLoad(
                f"{where}: its task read [{end['start']}, {end['end']}) and wrote {end['files']} files, "
                f"of which {len(written)} are known"
            )
        found, dead = files_of(written), files_of(written, _DEAD)
        count, dead_count = (sum(file.rows for file in some) for some in (found, dead))
        if is_whole and (end["records"], end["rows"]) != (count + dead_count, count):
            raise ReceiptMismatch(
                f"{where}: its task read {end['records']} records and wrote {count} rows and {dead_count} "
                "dead letters"
            )
        files += found
        letters += dead
        rows += end["rows"]
    return Written(tuple(files), tuple(letters), rows)
