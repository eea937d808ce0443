"""Whether a database holds what the ledger says: offsets, counts and rows, load by load. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark_kafkalog.loads.archive import Archive
from pyspark_kafkalog.loads.commit import Commit
from pyspark_kafkalog.loads.errors import LoadError
from pyspark_kafkalog.loads.layout import receipts_name
from pyspark_kafkalog.loads.plan import PlannedRange
from pyspark_kafkalog.loads.sql_database import Connect, Database, Session, database_of
from pyspark_kafkalog.loads.sql_dialect import TableName
from pyspark_kafkalog.loads.sql_offsets import (
    SQL_FORMAT,
    WRITTEN,
    OffsetTables,
    RangeRow,
    TableRow,
    range_key,
)


def audit_database(archive: Archive, database: Database) -> list[str]:
    """What differs between the ledger and this database, in words; [] where all is as it was committed.

    Raises:
        DatabaseFailed: it cannot be reached.
        LoadError: the ledger cannot be read.
    """
    tables: dict[str, list[int]] = {}
    for commit in archive.lineage():
        for out in commit.outputs:
            if (out.format, out.path) == (SQL_FORMAT, database.name):
                tables.setdefault(str(out.evidence.get("table")), []).append(commit.number)
    with database.session() as session:
        return [
            finding
            for table, loads in tables.items()
            for finding in _audit_table(archive, session, TableName.of(table), loads)
        ]


def audit_sql(name: str, offsets: str, url: str, connect: Connect | None = None) -> list[str]:
    """`audit_database` of load ``name``, whose ledger is below ``offsets``, and the database at ``url``."""
    from pyspark_kafkalog.loads.ledger import Ledger

    return audit_database(Ledger.at(offsets, name), database_of(url, connect))


def _audit_table(archive: Archive, session: Session, table: TableName, loads: Sequence[int]) -> Iterator[str]:
    """One table; ``loads`` are those in effect that wrote it."""
    tables = OffsetTables(session, table)
    at = f"{session.database.name}: table {table}"
    claim = tables.claimed() if tables.exist() else None
    if claim is None or claim.ledger != archive.identity():
        yield f"{at} is not this load's: {'nobody wrote to it' if claim is None else claim.offsets_path}"
        return
    pending = archive.pending()
    known = {*loads, *([pending.number] if pending else [])}
    for number, states in sorted(tables.states().items()):
        if WRITTEN in states and number not in known:
            yield f"{at} has rows of load {number}, which is not in effect: the next load removes them"
    rows = {number: tables.of_load(number) for number in loads}
    for number in loads:
        for finding in _audit_load(archive, archive.commit_at(number), rows[number]):
            yield f"{at}, load {number}: {finding}"
    yield from (f"{at}, {finding}" for finding in _audit_counts(session, table, claim, rows))


def _audit_load(archive: Archive, commit: Commit, rows: list[RangeRow]) -> Iterator[str]:
    """The ranges of a load and what was read of each, against plan and receipts."""
    plan = archive.plan(commit.number)
    there = {row.range: row for row in rows if row.state == WRITTEN}
    has_receipts = bool(archive.store.names(receipts_name(plan.number)))
    for planned in plan.ranges:
        row = there.pop(range_key(planned), None)
        where = f"{planned.key} [{planned.start}, {planned.end})"
        if row is None:
            yield f"{where} is missing"
        elif row.plan_sha256 != plan.sha256:
            yield f"{where} is of another plan"
        elif has_receipts:
            yield from (
                f"{where}: {finding}" for finding in _audit_range(archive, commit.number, planned, row)
            )
    for row in there.values():
        yield f"{row.topic}-{row.kafka_partition} [{row.start_offset}, {row.end_offset}) is not in the plan"


def _audit_range(archive: Archive, number: int, planned: PlannedRange, row: RangeRow) -> Iterator[str]:
    try:
        receipt = archive.receipt(archive.plan(number), planned)
    except LoadError as e:
        yield str(e)
        return
    if receipt is None or row.record_count is None:
        return
    if (row.record_count, row.digest) != (receipt.records, receipt.digest):
        yield (
            f"{row.record_count} records (digest {row.digest}) in the database, {receipt.records} "
            f"({receipt.digest}) in the receipt"
        )


def _audit_counts(
    session: Session, table: TableName, claim: TableRow, rows: dict[int, list[RangeRow]]
) -> Iterator[str]:
    """The rows of the table by load, against what the loads wrote."""
    if claim.load_column is None:
        return
    dialect = session.database.dialect
    column = dialect.quote(claim.load_column)
    counted = dict(session.query(f"SELECT {column}, COUNT(*) FROM {table.quoted(dialect)} GROUP BY {column}"))
    for number, ranges in rows.items():
        wrote, found = sum(row.row_count for row in ranges), counted.get(number, 0)
        if found != wrote:
            yield f"load {number}: {found} rows are there, {wrote} were written"
