"""A database table as the target of a load (mode ``sql``). A task reads one range, and writes its rows and
its offset row in one transaction, whose unique key exists if another attempt wrote the range first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.errors import (
    DatabaseFailed,
    IncompleteLoad,
    InvalidConfig,
    LoadError,
    LostRace,
    ReceiptMismatch,
    UnstorableValue,
)
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.engines.engine import Tell, tell_nobody
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.output_files import Claim, check_not_copied
from pyspark_kafkalog.loads.range_tasks import RangeTasks
from pyspark_kafkalog.loads.sql.database import (
    LOAD_COLUMN,
    SQLITE,
    Connect,
    Database,
    DatabaseSession,
    TableName,
    database_of,
)
from pyspark_kafkalog.loads.sql.offset_tables import (
    SQL_FORMAT,
    WRITTEN,
    OffsetTables,
    RangeRow,
    TableRow,
    range_key,
    range_row,
)
from pyspark_kafkalog.loads.sql.reconcile import clean_table
from pyspark_kafkalog.loads.transform import RowFunctions, Transform, transformed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SqlTasks:
    """Pickled into each task."""

    ranges: RangeTasks
    database: Database
    table: TableName
    load_column: str | None
    transform: Transform | None

    def __call__(self, index: int, tell: Tell) -> Iterable[str]:
        """As `write`; says nothing, for the database knows what was written."""
        self.write(index, tell)
        return ()

    def write(self, index: int, tell: Tell = tell_nobody) -> bool:
        """Write range number ``index``; False if another attempt had written it."""
        ranges = self.ranges
        planned = ranges.parts[index].planned
        found = self._find(planned)
        if found is None:
            found = self._write(index, tell)
        else:
            check_same_range(self.database, found, ranges.plan, planned, self._receipt(index))
        if ranges.ledger is not None:
            ranges.ledger.mark_read(ranges.plan.number, index, ranges.run)
        return found is None

    def _find(self, planned: PlannedRange) -> RangeRow | None:
        with self.database.session() as session:
            return OffsetTables(session, self.table).find(self.ranges.plan.number, planned)

    def _write(self, index: int, tell: Tell) -> RangeRow | None:
        ranges, receipt = self.ranges, None
        planned = ranges.parts[index].planned
        try:
            with self.database.session() as session:
                receipt, rows = ranges.read(index, lambda batch: self._insert(session, batch), tell)
                ranges.leave(receipt, index)
                row = range_row(
                    self.table, ranges.load_name, ranges.plan, planned, receipt,
                    ranges=len(ranges.parts), rows=rows, run=ranges.run, now=utc_text(SYSTEM_CLOCK.time_ms()),
                )  # fmt: skip
                OffsetTables(session, self.table).add([row])
                session.commit()
        except DatabaseFailed:
            # Another attempt has the key, a user's constraint failed, or the reply to the commit was lost.
            # The row says which.
            found = self._find(planned)
            if found is None:
                raise
            check_same_range(self.database, found, ranges.plan, planned, receipt)
            return found
        except UnstorableValue as e:
            raise UnstorableValue(f"{planned.key} [{planned.start}, {planned.end}): {e}") from None
        return None

    def _receipt(self, index: int) -> Receipt | None:
        """The receipt of a written range; reads the range again if it was deleted."""
        ranges = self.ranges
        if ranges.ledger is None:
            return None
        found = ranges.ledger.receipt(ranges.plan, ranges.parts[index].planned)
        if found is None:
            found, _ = ranges.read(index, lambda _: 0, tell_nobody)
            ranges.leave(found, index)
        return found

    def _insert(self, session: DatabaseSession, batch: pa.RecordBatch) -> int:
        shaped = transformed(batch, self.transform)
        for one in shaped:
            session.insert(self.table, with_load(one, self.load_column, self.ranges.plan.number))
        return sum(one.num_rows for one in shaped)


def check_same_range(
    database: Database, found: RangeRow, plan: Plan, planned: PlannedRange, receipt: Receipt | None
) -> None:
    """`LostRace`: the load was abandoned or rewound; `ReceiptMismatch`: plan or records differ."""
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


def with_load(batch: pa.RecordBatch, column: str | None, number: int) -> pa.RecordBatch:
    import pyarrow as pa

    if column is None:
        return batch
    numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, column])


_NAMED_COUNT = 3


class SqlTable:
    """*Not thread-safe.* Tasks write the load's own rows, each its range in one transaction. The driver
    writes a DataFrame (``df=``) in one, since its Spark tasks do not match the ranges.
    """

    mode = "sql"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        transform: Transform | None = None,
        connect: Connect | None = None,
        load_column: str | None = LOAD_COLUMN,
    ) -> None:
        """``connect`` opens a connection of any DB-API driver, also in tasks; ``url`` then only names it."""
        self.database = database_of(url, connect)
        self.table = TableName.of(table)
        self._transform = transform
        self._load_column = load_column
        self.table.quoted(self.database.dialect)
        if load_column is not None:
            self.database.dialect.quote(load_column)

    def check(self, work: Work, /) -> None:
        if self._transform is not None and not work.is_whole:
            raise InvalidConfig(
                "df= and transform= exclude each other: transform= is applied to the load's own rows"
            )
        name, table = self.database.name, str(self.table)
        if any((done.path, done.evidence.get("table")) == (name, table) for done in work.before):
            raise LoadError(
                f"{name}: table {table} was written in this block already: union the rows and write once"
            )
        if self.database.dialect is SQLITE and not work.engine.master.startswith("local"):
            raise InvalidConfig(
                f"{name}: SQLite is a file of one machine, and spark.master is {work.engine.master}: use a "
                "local master, or a database with a server"
            )
        schema = self._schema(work)
        with self.database.session() as session:
            tables = OffsetTables(session, self.table)
            tables.ensure()
            ledger, now = work.ledger, utc_text(SYSTEM_CLOCK.time_ms())
            claim = tables.claim(
                TableRow(
                    table, ledger.name, ledger.identity(), ledger.offsets_path, self._load_column, 0, now
                )
            )
            where = f"{name}: table {table}"
            check_not_copied(Claim(claim.load_name, claim.offsets_path, claim.ledger, where), work.ledger)
            self._check_columns(session, schema)
            clean_table(tables, work.ledger, claim, work.plan.parent)

    def find(self, work: Work, /) -> tuple[LoadOutput, ...]:
        rows = self._rows(work)
        planned_ranges = {range_key(planned): planned for planned in work.plan.ranges}
        for row in rows:
            if row.plan_sha256 != work.plan.sha256 or row.range not in planned_ranges:
                raise ReceiptMismatch(
                    f"{self.database.name}: table {self.table} has rows of another plan of load "
                    f"{work.plan.number}. Was the ledger replaced by an older copy? Restore it, or write to "
                    "another table"
                )
        if len(rows) < len(planned_ranges):
            return ()
        for row in rows:
            planned = planned_ranges[row.range]
            receipt = work.ledger.receipt(work.plan, planned) if work.has_receipts else None
            if receipt is None and work.has_receipts:
                return ()  # the commit needs it: the task reads again
            check_same_range(self.database, row, work.plan, planned, receipt)
        return (self._output(rows),)

    def write(self, work: Work, /) -> tuple[LoadOutput, ...]:
        if work.is_whole:
            work.engine.run(self.tasks(work), len(work.plan.ranges))
        else:
            self._write_frame(work)
        rows = self._rows(work)
        there = {row.range: row for row in rows}
        for planned in work.plan.ranges:
            if (row := there.get(range_key(planned))) is not None:
                check_same_range(self.database, row, work.plan, planned, None)
        missing = [r for r in work.plan.ranges if range_key(r) not in there]
        if missing:
            named = ", ".join(f"{r.key} [{r.start}, {r.end})" for r in missing[:_NAMED_COUNT])
            raise IncompleteLoad(
                f"load {work.plan.number}: the tasks ended, and {len(missing)} of {len(work.plan.ranges)} "
                f"ranges are not in {self.database.name}, first {named}. Do driver and executors reach the "
                "same database?"
            )
        return (self._output(rows),)

    def tasks(self, work: Work) -> SqlTasks:
        return SqlTasks(RangeTasks.of(work), self.database, self.table, self._load_column, self._transform)

    def _rows(self, work: Work) -> list[RangeRow]:
        with self.database.session() as session:
            return OffsetTables(session, self.table).of_load(work.plan.number)

    def _write_frame(self, work: Work) -> None:
        plan, ranges = work.plan, work.plan.ranges
        found = self._rows(work)
        if found and len(found) < len(ranges):
            raise LoadError(
                f"{self.database.name}: an earlier attempt wrote {len(found)} of {len(ranges)} ranges of "
                f"load {plan.number} to table {self.table}: write the others in the same way, without df=; "
                "or abandon the plan with on_pending='discard', which removes them"
            )
        if found:
            return  # their rows are in the same transaction
        try:
            self._insert_frame(work)
        except DatabaseFailed:
            # Another attempt was first, the load was abandoned, or the reply to the commit was lost: then the
            # keys are taken, and `write` checks them.
            if len(self._rows(work)) < len(ranges):
                raise

    def _insert_frame(self, work: Work) -> None:
        plan, ranges = work.plan, work.plan.ranges
        with self.database.session() as session:
            count = 0
            for batch in _batches(work.rows):
                session.insert(self.table, with_load(batch, self._load_column, plan.number))
                count += batch.num_rows
            receipts: list[Receipt | None] = [None] * len(ranges)
            if work.has_receipts:
                work.ledger.check_read(plan, work.run)  # receipts may be of another attempt
                receipts = [*work.ledger.receipts(plan)]
            now = utc_text(SYSTEM_CLOCK.time_ms())
            OffsetTables(session, self.table).add(
                range_row(
                    self.table, work.ledger.name, plan, planned, receipt,
                    ranges=len(ranges), rows=0 if at else count, run=work.run, now=now,
                )
                for at, (planned, receipt) in enumerate(zip(ranges, receipts, strict=True))
            )  # fmt: skip
            session.commit()

    def _schema(self, work: Work) -> pa.Schema:

        if not work.is_whole:
            return work.rows.limit(0).toArrow().schema
        columns = arrow_schema(work.source.row_columns, COLUMNS_07)
        return RowFunctions(transform=self._transform).schema(columns)

    def _check_columns(self, session: DatabaseSession, schema: pa.Schema) -> None:
        column = self._load_column
        names = [*schema.names, *([column] if column else [])]
        if len({name.lower() for name in names}) < len(names):
            raise InvalidConfig(f"columns {', '.join(names)}: two have the same name")
        there = session.columns(self.table)
        if there is None:
            self._create(session, schema)
            return
        missing = [name for name in names if name not in there]
        if missing:
            hint = (
                f" ({column} has the number of the load; omit it with load_column=None)"
                if column in missing
                else ""
            )
            raise LoadError(
                f"{self.database.name}: table {self.table} has no column {', '.join(missing)}; it has "
                f"{', '.join(there)}{hint}"
            )

    def _create(self, session: DatabaseSession, schema: pa.Schema) -> None:
        dialect = self.database.dialect
        if dialect.column_type is None:
            raise LoadError(
                f"{self.database.name}: there is no readable table {self.table}, and loads cannot create "
                "tables in this database: create it"
            )
        columns, unknown = [], []
        for field in schema:
            kind = dialect.column_type(field.type)
            columns.append(f"{dialect.quote(field.name)} {kind}")
            if kind is None:
                unknown.append(f"{field.name} {field.type}")
        if unknown:
            raise InvalidConfig(
                f"{self.database.name}: table {self.table} has no type for {', '.join(unknown)}: make flat "
                "columns with transform= or df="
            )
        if self._load_column is not None:
            columns.append(f"{dialect.quote(self._load_column)} BIGINT NOT NULL")
        session.run(f"CREATE TABLE {self.table.quoted(dialect)} ({', '.join(columns)})")
        session.commit()

    def _output(self, rows: list[RangeRow]) -> LoadOutput:
        count = sum(row.row_count for row in rows)
        return LoadOutput(
            self.database.name, format=SQL_FORMAT, evidence={"table": str(self.table), "rows": count}
        )


def _batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame, one partition at a time, in Arrow streams: no value becomes an object."""
    import pyarrow as pa

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_arrays(
                [pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["batch"]
            )

    for row in frame.mapInArrow(packed, "batch binary").toLocalIterator():
        yield from pa.ipc.open_stream(row.batch)
