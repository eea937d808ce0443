"""Compares a database with the ledger: audits both, and removes rows of loads not in effect.

An attempt at an abandoned or rewound load may still run, on an executor of a driver that died. So before its
rows are removed, each range of the load gets an offset row of state ``superseded``: the attempt then finds
its key taken and rolls back. This needs only a unique key from the database.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.errors import DatabaseFailed, LoadError
from pyspark_kafkalog.ledger.archive import Archive
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.records import plan_name, receipts_name
from pyspark_kafkalog.loads.sql.database import Connect, Database, DatabaseSession, TableName, database_of
from pyspark_kafkalog.loads.sql.offset_tables import (
    SQL_FORMAT,
    SUPERSEDED,
    WRITTEN,
    OffsetTables,
    RangeRow,
    TableRow,
    range_key,
    range_row,
)


def audit_database(archive: Archive, database: Database) -> list[str]:
    """Differences between the ledger and this database, in words; empty if there are none. Writes nothing."""
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
    """`audit_database` of load ``name``, with its ledger below ``offsets``, and the database at ``url``."""
    from pyspark_kafkalog.ledger.ledger import Ledger

    return audit_database(Ledger.at(offsets, name), database_of(url, connect))


def _audit_table(
    archive: Archive, session: DatabaseSession, table: TableName, loads: Sequence[int]
) -> Iterator[str]:
    tables = OffsetTables(session, table)
    at = f"{session.database.name}: table {table}"
    claim = tables.claimed() if tables.exist() else None
    if claim is None or claim.ledger != archive.identity():
        owner = "no load" if claim is None else f"a load with its offsets in {claim.offsets_path}"
        yield f"{at} belongs to {owner}"
        return
    pending = archive.pending()
    known = {*loads, *([pending.number] if pending else [])}
    for number, states in sorted(tables.states().items()):
        if WRITTEN in states and number not in known:
            yield f"{at} has rows of load {number}, which is not in effect: the next load removes them"
    rows = {number: tables.of_load(number) for number in loads}
    for number in loads:
        yield from (f"{at}, load {number}: {f}" for f in _audit_load(archive, number, rows[number]))
    yield from (f"{at}, {finding}" for finding in _audit_counts(session, table, claim, rows))


def _audit_load(archive: Archive, number: int, rows: list[RangeRow]) -> Iterator[str]:
    plan = archive.plan(number)
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
            yield from (f"{where}: {finding}" for finding in _audit_range(archive, plan, planned, row))
    for row in there.values():
        yield f"{row.topic}-{row.kafka_partition} [{row.start_offset}, {row.end_offset}) is not in the plan"


def _audit_range(archive: Archive, plan: Plan, planned: PlannedRange, row: RangeRow) -> Iterator[str]:
    try:
        receipt = archive.receipt(plan, planned)
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
    session: DatabaseSession, table: TableName, claim: TableRow, rows: dict[int, list[RangeRow]]
) -> Iterator[str]:
    if claim.load_column is None:
        return
    dialect = session.database.dialect
    column = dialect.quote(claim.load_column)
    counted = dict(session.query(f"SELECT {column}, COUNT(*) FROM {table.quoted(dialect)} GROUP BY {column}"))
    for number, ranges in rows.items():
        wrote, found = sum(row.row_count for row in ranges), counted.get(number, 0)
        if found != wrote:
            yield f"load {number}: {found} rows are there, {wrote} were written"


log = logging.getLogger(__name__)

_ATTEMPTS = 5
"""An old attempt that commits a range meanwhile takes one key, which costs one attempt here."""


def clean_table(tables: OffsetTables, archive: Archive, claim: TableRow, head: int) -> list[int]:
    """Remove the rows of loads up to commit ``head`` that are not in effect; returns the loads. Raises
    `LoadError` if such rows cannot be told from others, or a load is in effect again whose rows were removed.
    """
    in_effect, floor = _in_effect(archive, head, claim.checked_to)
    states = tables.states(after=floor)
    gone = sorted(n for n, found in states.items() if n in in_effect and SUPERSEDED in found)
    if gone:
        raise LoadError(
            f"{tables.session.database.name}: load {', '.join(map(str, gone))} is in effect again after a "
            f"rewind, but its rows were removed from table {tables.table}: rewind to a commit before load "
            f"{gone[0]} to read them again"
        )
    left = [n for n in range(floor + 1, head + 1) if n not in in_effect and states.get(n) != {SUPERSEDED}]
    if not left and claim.checked_to == head:
        return []
    for attempt in range(_ATTEMPTS):
        try:
            removed = [n for n in left if _remove(tables, archive, claim, n)]
            tables.checked(head)
            tables.session.commit()
        except DatabaseFailed:
            tables.session.rollback()
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    if removed:
        log.warning(
            "table %s of %s: removed the rows of load %s, which was abandoned or rewound",
            tables.table, tables.session.database.name, ", ".join(map(str, removed)),
        )  # fmt: skip
    return removed


def _in_effect(archive: Archive, head: int, checked_to: int) -> tuple[set[int], int]:
    """The loads in effect above a floor, and that floor: ``checked_to``, or 0 after a rewind to before it."""
    found, at, floor = set(), head, checked_to
    while at != floor:
        if at < floor:
            floor = 0
            continue
        commit = archive.commit_at(at)
        if commit.is_load:
            found.add(at)
        at = commit.parent
    return found, floor


def _remove(tables: OffsetTables, archive: Archive, claim: TableRow, number: int) -> bool:
    """Take every key of a load, then remove its rows; returns whether it had any. Does not commit."""
    _take_keys(tables, archive, claim, number)
    there = [row for row in tables.of_load(number) if row.state == WRITTEN]
    if not there:
        return False
    count = sum(row.row_count for row in there)
    if claim.load_column is None and count:
        raise LoadError(
            f"{tables.session.database.name}: load {number} was abandoned or rewound, and table "
            f"{tables.table} has {count} rows of it that cannot be told from others (load_column=None). "
            f"Remove them yourself, then set row_count = 0 where load_number = {number} in "
            "_kafkalog_offsets, and load again"
        )
    if claim.load_column is not None:
        dialect = tables.session.database.dialect
        tables.session.run(
            f"DELETE FROM {tables.table.quoted(dialect)} WHERE {dialect.quote(claim.load_column)} = ?",
            (number,),
        )
    tables.supersede(number)
    return True


def _take_keys(tables: OffsetTables, archive: Archive, claim: TableRow, number: int) -> None:
    if not archive.store.exists(plan_name(number)):
        return
    try:
        plan = archive.plan(number)
    except LoadError as e:
        log.warning("only the written ranges of load %d are known: %s", number, e)
        return
    taken = {row.range for row in tables.of_load(number)}
    ranges = plan.ranges
    tables.add(
        range_row(
            tables.table, claim.load_name, plan, planned, None,
            ranges=len(ranges), rows=0, run=None, now=utc_text(SYSTEM_CLOCK.time_ms()), state=SUPERSEDED,
        )
        for planned in ranges
        if range_key(planned) not in taken
    )  # fmt: skip
