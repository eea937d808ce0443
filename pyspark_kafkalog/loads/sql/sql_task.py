"""A task of mode ``sql``: it reads one range, and writes its rows and its offset row in one transaction.

The task reads by itself, so that what it writes is that range and nothing else, whatever Spark does with
tasks. That somebody else wrote the range first, an earlier attempt or a later one, shows in the offset row:
its key is unique.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.datasource.load.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.load_errors import DatabaseFailed, LostRace, ReceiptMismatch, UnstorableValue
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.sql.database import Database, Session, TableName
from pyspark_kafkalog.loads.sql.offset_tables import WRITTEN, OffsetTables, RangeRow, range_row

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[["pa.RecordBatch"], "pa.RecordBatch | pa.Table"]
"""Makes the rows of a table of the source's rows, batch by batch. Called in tasks."""


@dataclass(frozen=True)
class SqlTasks:
    """All tasks of a load. Pickled into each of them, so it holds settings only.

    ``plan`` has no partitions: of a thousand they would be sent to a thousand tasks. ``ledger_at`` is None
    where executors cannot reach the ledger.
    """

    database: Database
    table: TableName
    load_column: str | None
    transform: Transform | None
    reader: LoadReader
    plan: Plan
    parts: tuple[tuple[LoadInputPartition, PlannedRange], ...]
    load_name: str
    ledger_at: str | None
    run: str

    def write(self, index: int) -> bool:
        """Have range number ``index`` in the database; False where somebody had written it before.

        Raises:
            ReceiptMismatch: what is there is of other records.
            LostRace: the load was given up or rewound over.
            DatabaseFailed: it is not there, and could not be written.
            UnstorableValue: a value cannot be stored; the text says of which column and offsets.
            KafkaError: the range could not be read.
        """
        part, planned = self.parts[index]
        found = self._find(planned)
        if found is None:
            found = self._write(part, planned)
        else:
            check_found(self.database, found, self.plan, planned, self._receipt(part, planned))
        if self.ledger is not None:
            self.ledger.mark_read(self.plan, index, self.run)
        return found is None

    @property
    def ledger(self) -> Ledger | None:
        """The load's ledger, where it can be reached from here."""
        return None if self.ledger_at is None else Ledger.at(self.ledger_at, self.load_name)

    def _find(self, planned: PlannedRange) -> RangeRow | None:
        with self.database.session() as session:
            return OffsetTables(session, self.table).find(self.plan.number, planned)

    def _write(self, part: LoadInputPartition, planned: PlannedRange) -> RangeRow | None:
        """Write the range, and None; where another attempt was first its row, and nothing of ours is left."""
        receipt = None
        try:
            with self.database.session() as session:
                receipt, rows = self._copy(part, planned, lambda batch: self._insert(session, batch))
                row = range_row(
                    self.table, self.load_name, self.plan, planned, receipt,
                    ranges=len(self.parts), rows=rows, run=self.run, now=utc_text(SYSTEM_CLOCK.time_ms()),
                )  # fmt: skip
                OffsetTables(session, self.table).add([row])
                session.commit()
        except DatabaseFailed:
            # Refused for the key that another attempt's row has, or for a key of the user's own; or the
            # answer to the commit was lost. The row says which.
            found = self._find(planned)
            if found is None:
                raise
            check_found(self.database, found, self.plan, planned, receipt)
            return found
        except UnstorableValue as e:
            raise UnstorableValue(f"{planned.key} [{planned.start}, {planned.end}): {e}") from None
        return None

    def _copy(
        self, part: LoadInputPartition, planned: PlannedRange, take: Callable[[pa.RecordBatch], int]
    ) -> tuple[Receipt, int]:
        """Read the range, hand on each batch, and leave the receipt: it must not be missing once the rows are
        committed. Returns it, and the sum of what ``take`` returned.
        """
        rows, count = self.reader.rows_of(part, self.plan, planned), 0
        with closing(rows):
            while True:
                try:
                    batch = next(rows)
                except StopIteration as end:
                    receipt: Receipt = end.value
                    break
                count += take(batch)
        if self.ledger is not None:
            self.ledger.leave_receipt(receipt)
        return receipt, count

    def _receipt(self, part: LoadInputPartition, planned: PlannedRange) -> Receipt | None:
        """What was read of a range that is written: its receipt; if that was deleted, by reading again."""
        if self.ledger is None:
            return None
        return self.ledger.receipt(self.plan, planned) or self._copy(part, planned, lambda _: 0)[0]

    def _insert(self, session: Session, batch: pa.RecordBatch) -> int:
        """Insert what comes of a batch; returns the number of rows."""
        shaped = shape(batch, self.transform)
        for one in shaped:
            session.insert(self.table, with_load(one, self.load_column, self.plan.number))
        return sum(one.num_rows for one in shaped)


def check_found(
    database: Database, found: RangeRow, plan: Plan, planned: PlannedRange, receipt: Receipt | None
) -> None:
    """See that what is in the database is this range, and of the records that ``receipt`` tells of.

    Raises:
        LostRace: it is of a load that no longer counts.
        ReceiptMismatch: it is of another plan, or of other records.
    """
    at = f"{database.name}: load {plan.number} of table {found.table_name}, {planned.key}"
    if found.state != WRITTEN:
        raise LostRace(f"{at}: the load was given up or rewound over, and its rows must not come any more")
    if (found.plan_sha256, found.end_offset) != (plan.sha256, planned.end):
        raise ReceiptMismatch(
            f"{at}: the rows of [{found.start_offset}, {found.end_offset}) are of another plan. Was the "
            "ledger replaced by an older copy? Restore it, or write to another table"
        )
    there = found.record_count, found.digest
    if receipt is not None and None not in there and there != (receipt.records, receipt.digest):
        raise ReceiptMismatch(
            f"{at}: {found.record_count} records of [{planned.start}, {planned.end}) are in the database "
            f"(digest {found.digest}), and {receipt.records} were read ({receipt.digest}): the log "
            "changed between two attempts. Check the topic"
        )


def shape(batch: pa.RecordBatch, transform: Transform | None) -> list[pa.RecordBatch]:
    """What a transformation makes of a batch; the batch itself without one.

    Raises:
        InvalidConfig: it makes something that is neither a batch nor a table of Arrow.
    """
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
    """A batch with the number of its load in ``column``, if that is wanted."""
    import pyarrow as pa

    if column is None:
        return batch
    numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, column])
