"""A task of mode ``sql``: it reads one range, and writes its rows and its offset row in one transaction,
however Spark runs tasks. If another attempt wrote the range first, the unique key of its offset row exists
already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.errors import DatabaseFailed, InvalidConfig, LostRace, ReceiptMismatch, UnstorableValue
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.sql.database import Database, DatabaseSession, TableName
from pyspark_kafkalog.loads.sql.offset_tables import WRITTEN, OffsetTables, RangeRow, range_row

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[["pa.RecordBatch"], "pa.RecordBatch | pa.Table"]
"""Turns batches of the source into rows of the table. Called in tasks."""


@dataclass(frozen=True)
class SqlTasks:
    """The tasks of a load, pickled into each of them: to keep that small, ``plan`` has no partitions.
    ``ledger_at`` is None if executors cannot reach the ledger.
    """

    database: Database
    table: TableName
    load_column: str | None
    transform: Transform | None
    reader: LoadReader
    plan: Plan
    parts: tuple[LoadInputPartition, ...]
    load_name: str
    ledger_at: str | None
    run: str

    def write(self, index: int) -> bool:
        """Write range number ``index``; False if another attempt had written it. Raises `ReceiptMismatch` if
        that attempt read other records, `LostRace` if the load was abandoned or rewound, `DatabaseFailed`,
        `UnstorableValue` with column and offsets, and `KafkaError` if the range could not be read.
        """
        part = self.parts[index]
        found = self._find(part.planned)
        if found is None:
            found = self._write(part)
        else:
            check_same_range(self.database, found, self.plan, part.planned, self._receipt(part))
        if self.ledger is not None:
            self.ledger.mark_read(self.plan.number, index, self.run)
        return found is None

    @property
    def ledger(self) -> Ledger | None:
        return None if self.ledger_at is None else Ledger.at(self.ledger_at, self.load_name)

    def _find(self, planned: PlannedRange) -> RangeRow | None:
        with self.database.session() as session:
            return OffsetTables(session, self.table).find(self.plan.number, planned)

    def _write(self, part: LoadInputPartition) -> RangeRow | None:
        """Write the range; returns None, or the row of another attempt that was first."""
        planned, receipt = part.planned, None
        try:
            with self.database.session() as session:
                receipt, rows = self._copy(part, lambda batch: self._insert(session, batch))
                row = range_row(
                    self.table, self.load_name, self.plan, planned, receipt,
                    ranges=len(self.parts), rows=rows, run=self.run, now=utc_text(SYSTEM_CLOCK.time_ms()),
                )  # fmt: skip
                OffsetTables(session, self.table).add([row])
                session.commit()
        except DatabaseFailed:
            # Another attempt has the key, a user's constraint failed, or the reply to the commit was lost.
            # The row says which.
            found = self._find(planned)
            if found is None:
                raise
            check_same_range(self.database, found, self.plan, planned, receipt)
            return found
        except UnstorableValue as e:
            raise UnstorableValue(f"{planned.key} [{planned.start}, {planned.end}): {e}") from None
        return None

    def _copy(self, part: LoadInputPartition, take: Callable[[pa.RecordBatch], int]) -> tuple[Receipt, int]:
        """Read the range, leaving its receipt before the commit; returns it, and the sum of ``take``."""
        rows, count = self.reader.rows_of(part, lambda: self.plan), 0
        with closing(rows):
            while True:
                try:
                    batch = next(rows)
                except StopIteration as end:
                    receipt: Receipt = end.value
                    break
                count += take(batch)
        if self.ledger is not None:
            self.ledger.leave_receipt(receipt, part.index)
        return receipt, count

    def _receipt(self, part: LoadInputPartition) -> Receipt | None:
        """The receipt of a written range; reads the range again if it was deleted."""
        if self.ledger is None:
            return None
        return self.ledger.receipt(self.plan, part.planned) or self._copy(part, lambda _: 0)[0]

    def _insert(self, session: DatabaseSession, batch: pa.RecordBatch) -> int:
        shaped = transformed(batch, self.transform)
        for one in shaped:
            session.insert(self.table, with_load(one, self.load_column, self.plan.number))
        return sum(one.num_rows for one in shaped)


def check_same_range(
    database: Database, found: RangeRow, plan: Plan, planned: PlannedRange, receipt: Receipt | None
) -> None:
    """Check that the database's row is for this range, with the records that ``receipt`` counts. Raises
    `LostRace` if the load was abandoned or rewound, `ReceiptMismatch` if plan or records differ.
    """
    at = f"{database.name}: load {plan.number} of table {found.table_name}, {planned.key}"
    if found.state != WRITTEN:
        raise LostRace(f"{at}: the load was abandoned or rewound; its rows must not be written")
    if (found.plan_sha256, found.end_offset) != (plan.sha256, planned.end):
        raise ReceiptMismatch(
            f"{at}: the rows of [{found.start_offset}, {found.end_offset}) are of another plan. Was the "
            "ledger replaced by an older copy? Restore it, or write to another table"
        )
    there = found.record_count, found.digest
    if receipt is not None and None not in there and there != (receipt.records, receipt.digest):
        raise ReceiptMismatch(
            f"{at}: the database has {found.record_count} records of [{planned.start}, {planned.end}), "
            f"digest {found.digest}, and {receipt.records} were read, digest {receipt.digest}: the log "
            "changed between two attempts. Check the topic"
        )


def transformed(batch: pa.RecordBatch, transform: Transform | None) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if transform is None:
        return [batch]
    made = transform(batch)
    if isinstance(made, pa.Table):
        return list(made.to_batches()) or [pa.RecordBatch.from_pylist([], schema=made.schema)]
    if isinstance(made, pa.RecordBatch):
        return [made]
    raise InvalidConfig(
        f"transform= returned {type(made).__name__}; it must be a pyarrow RecordBatch or Table"
    )


def with_load(batch: pa.RecordBatch, column: str | None, number: int) -> pa.RecordBatch:
    import pyarrow as pa

    if column is None:
        return batch
    numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, column])
