"""A table of a database as a load's target (mode ``sql``): rows and offsets in one transaction.

What tasks do is ``sql_task``'s; here is the driver's part: the table, whose it is, and that in the end every
range of the plan is in the database. The guarantee, and what each crash does: docs/loads.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.columnar.columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.datasource.load.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.commit import Output
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.load_errors import DatabaseFailed, IncompleteLoad, LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.output_files import Claim, refuse_a_copy
from pyspark_kafkalog.loads.sql.database import (
    LOAD_COLUMN,
    SQLITE,
    Connect,
    Session,
    TableName,
    database_of,
)
from pyspark_kafkalog.loads.sql.offset_tables import (
    SQL_FORMAT,
    OffsetTables,
    RangeRow,
    TableRow,
    range_key,
    range_row,
)
from pyspark_kafkalog.loads.sql.reconcile import clean
from pyspark_kafkalog.loads.sql.sql_task import SqlTasks, Transform, check_found, shape, with_load
from pyspark_kafkalog.loads.target import Work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_TOLD_COUNT = 3


class SqlTable:
    """Table ``table`` of the database at ``url``. *Not thread-safe.*

    The load's own rows, as they are or through ``transform``, are written range by range, each in a
    transaction of its task. Rows of a DataFrame (``df=``) are written by the driver in one transaction, for
    there a task of Spark is no range.
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
        """``connect`` opens a connection of any DB-API driver, in driver and tasks; ``url`` then only names
        the database. ``load_column`` has the number of the load in each row; None for a table without one.

        Raises:
            InvalidConfig: the URL or the table's name is none.
        """
        self.database = database_of(url, connect)
        self.table = TableName.of(table)
        self._transform = transform
        self._load_column = load_column
        self.table.quoted(self.database.dialect)
        if load_column is not None:
            self.database.dialect.quote(load_column)

    def check(self, work: Work, /) -> None:
        """Have the tables there, this load's, with these columns, and without rows that do not count.

        Raises:
            InvalidConfig: a column has no type in this database, or a name that cannot be.
            LoadError: the table is another load's, was written in this block before, lacks columns, or has
                rows of loads that do not count and cannot be told from others.
            DatabaseFailed: the database cannot be reached, or refuses.
        """
        if self._transform is not None and not work.is_whole:
            raise InvalidConfig(
                "give df= or transform=, not both: transform= is applied to the load's own rows"
            )
        name, table = self.database.name, str(self.table)
        if any((done.path, done.evidence.get("table")) == (name, table) for done in work.before):
            raise LoadError(
                f"{name}: table {table} was written in this block already: union the rows, write once"
            )
        master = work.spark.conf.get("spark.master", "") or ""
        if self.database.dialect is SQLITE and not master.startswith("local"):
            raise InvalidConfig(
                f"{name}: SQLite is a file of one machine, and spark.master is {master}: use a local master, "
                "or a database with a server"
            )
        schema = self._schema(work)
        with self.database.session() as session:
            tables = OffsetTables(session, self.table)
            tables.ensure()
            claim = tables.claim(self._ours(work.ledger))
            where = f"{name}: table {table}"
            refuse_a_copy(Claim(claim.load_name, claim.offsets_path, claim.ledger, where), work.ledger)
            self._check_columns(session, schema)
            clean(tables, work.ledger, claim, work.plan.parent)

    def find(self, work: Work, /) -> Output | None:
        """What earlier attempts wrote, if every range of the plan is there.

        Raises:
            LoadError: it is of another plan, or of other records than were read.
        """
        rows = self._rows(work)
        planned_ranges = {range_key(planned): planned for planned in work.plan.ranges}
        for row in rows:
            if row.plan_sha256 != work.plan.sha256 or row.range not in planned_ranges:
                raise ReceiptMismatch(
                    f"{self.database.name}: table {self.table} has rows of another load {work.plan.number} "
                    "than the one that is planned. Was the ledger replaced by an older copy? Restore it, or "
                    "write to another table"
                )
        if len(rows) < len(planned_ranges):
            return None
        for row in rows:
            planned = planned_ranges[row.range]
            receipt = work.ledger.receipt(work.plan, planned) if work.has_receipts else None
            if receipt is None and work.has_receipts:
                return None  # the commit needs it: the task reads again, and compares
            check_found(self.database, row, work.plan, planned, receipt)
        return self._output(rows)

    def write(self, work: Work, /) -> Output:
        """Write what is not there yet, and see that everything is.

        Raises:
            IncompleteLoad: not all of the plan is in the database.
            LostRace: the load was given up or rewound over meanwhile.
            LoadError: a load that was begun range by range goes on with ``df=``; as `check` and `find` say.
        """
        if work.is_whole:
            self._write_ranges(work)
        else:
            self._write_frame(work)
        rows = self._rows(work)
        there = {row.range: row for row in rows}
        for planned in work.plan.ranges:
            if (row := there.get(range_key(planned))) is not None:
                check_found(self.database, row, work.plan, planned, None)
        missing = [r for r in work.plan.ranges if range_key(r) not in there]
        if missing:
            told = ", ".join(f"{r.key} [{r.start}, {r.end})" for r in missing[:_TOLD_COUNT])
            raise IncompleteLoad(
                f"load {work.plan.number}: the tasks ended, and {len(missing)} of {len(work.plan.ranges)} "
                f"ranges are not in {self.database.name}, first {told}. Do driver and executors reach the "
                "same database?"
            )
        return self._output(rows)

    def tasks(self, work: Work) -> SqlTasks:
        """What writes the load range by range; it asks the brokers where they are.

        Raises:
            KafkaError: the cluster could not be asked.
        """
        if work.source.load is None:
            raise LoadError("these options name no load")
        mine = replace(work.source.load, plan=work.plan.number, run=work.run)
        reader = LoadReader(work.source, work.frame.columns, mine)
        parts = cast("list[LoadInputPartition]", list(reader.partitions()))
        return SqlTasks(
            database=self.database,
            table=self.table,
            load_column=self._load_column,
            transform=self._transform,
            reader=reader,
            plan=replace(work.plan, partitions=()),
            parts=tuple(zip(parts, work.plan.ranges, strict=True)),
            load_name=work.ledger.name,
            ledger_at=_place(work.ledger) if work.has_receipts else None,
            run=work.run,
        )

    # ---- inside

    def _rows(self, work: Work) -> list[RangeRow]:
        with self.database.session() as session:
            return OffsetTables(session, self.table).of_load(work.plan.number)

    def _write_ranges(self, work: Work) -> None:
        """One task for each range; whatever Spark makes of tasks, each range is written by whom it names."""
        tasks, count = self.tasks(work), len(work.plan.ranges)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column("id").to_pylist():
                    tasks.write(index)
                yield batch

        work.spark.range(0, count, 1, count).mapInArrow(write, "id bigint").collect()

    def _write_frame(self, work: Work) -> None:
        """All rows and the offsets of all ranges, in one transaction of the driver."""
        plan, ranges = work.plan, work.plan.ranges
        found = self._rows(work)
        if found and len(found) < len(ranges):
            raise LoadError(
                f"{self.database.name}: load {plan.number} of table {self.table} was begun range by range, "
                f"and {len(found)} of {len(ranges)} are there: end it the same way, without df=; or give the "
                "plan up with on_pending='discard', which removes them"
            )
        if found:
            return  # and so are all rows
        try:
            self._insert_frame(work)
        except DatabaseFailed:
            # Another attempt was first, somebody gave the load up, or the answer to the commit was lost. Then
            # the keys are taken, and `write` looks at what they say.
            if len(self._rows(work)) < len(ranges):
                raise

    def _insert_frame(self, work: Work) -> None:
        plan, ranges = work.plan, work.plan.ranges
        with self.database.session() as session:
            count = 0
            for batch in _batches(work.frame):
                session.insert(self.table, with_load(batch, self._load_column, plan.number))
                count += batch.num_rows
            receipts: list[Receipt | None] = [None] * len(ranges)
            if work.has_receipts:
                work.ledger.check_read(plan, work.run)  # receipts may be of an attempt that read more
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
        """The columns of the rows that will come, the load's number not among them."""
        import pyarrow as pa

        if not work.is_whole:
            return work.frame.limit(0).toArrow().schema
        rows = arrow_schema(work.frame.columns, COLUMNS_07)
        return shape(pa.RecordBatch.from_pylist([], schema=rows), self._transform)[0].schema

    def _check_columns(self, session: Session, schema: pa.Schema) -> None:
        column = self._load_column
        names = [*schema.names, *([column] if column else [])]
        if len({name.lower() for name in names}) < len(names):
            raise InvalidConfig(f"columns {', '.join(names)}: a table cannot have two of one name")
        there = session.columns(self.table)
        if there is None:
            self._create(session, schema)
            return
        missing = [name for name in names if name not in there]
        if missing:
            hint = (
                f" ({column} has the number of the load; load_column=None does without)"
                if column in missing
                else ""
            )
            raise LoadError(
                f"{self.database.name}: table {self.table} has no column {', '.join(missing)}; it has "
                f"{', '.join(there)}{hint}"
            )

    def _create(self, session: Session, schema: pa.Schema) -> None:
        dialect = self.database.dialect
        if dialect.column_type is None:
            raise LoadError(
                f"{self.database.name}: there is no table {self.table} that can be read, and the types of "
                "this database are not known here: create it"
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
                "columns of it with transform= or df="
            )
        if self._load_column is not None:
            columns.append(f"{dialect.quote(self._load_column)} BIGINT NOT NULL")
        session.run(f"CREATE TABLE {self.table.quoted(dialect)} ({', '.join(columns)})")
        session.commit()

    def _ours(self, ledger: Ledger) -> TableRow:
        now = utc_text(SYSTEM_CLOCK.time_ms())
        return TableRow(
            str(self.table), ledger.name, ledger.identity(), _place(ledger), self._load_column, 0, now
        )

    def _output(self, rows: list[RangeRow]) -> Output:
        count = sum(row.row_count for row in rows)
        return Output(
            self.database.name, format=SQL_FORMAT, evidence={"table": str(self.table), "rows": count}
        )


def _place(ledger: Ledger) -> str:
    return str(Path(ledger.location).parent)


def _batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame, a partition after the other; no more than one partition is held here.

    As Arrow's own stream in a column of bytes, so that no value passes through Python on the way.
    """
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
