"""Rows of loads that do not count: given up or rewound over. They are removed, and kept from coming again.

An attempt at such a load may still run somewhere, on an executor of a driver that died. So before rows are
removed each range of the load gets its offset row, of state ``superseded``: the attempt finds its key taken
and undoes what it did. That asks nothing of a database but a unique key.
"""

from __future__ import annotations

import logging

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.loads.archive import Archive
from pyspark_kafkalog.loads.commit import LOAD_MODES
from pyspark_kafkalog.loads.errors import DatabaseFailed, LoadError
from pyspark_kafkalog.loads.layout import plan_name
from pyspark_kafkalog.loads.plan import Plan
from pyspark_kafkalog.loads.records import utc_text
from pyspark_kafkalog.loads.sql_offsets import (
    SUPERSEDED,
    WRITTEN,
    OffsetTables,
    TableRow,
    range_key,
    range_row,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 5
"""A range that an old attempt commits meanwhile takes its key from us, once."""


def clean(tables: OffsetTables, archive: Archive, claim: TableRow, head: int) -> list[int]:
    """Remove what loads up to commit ``head``, the newest, wrote and no longer counts; returns their numbers.

    Raises:
        LoadError: rows must go and cannot be told from others, or rows that were removed are in effect again.
        DatabaseFailed: the database refuses.
    """
    in_effect, floor = _in_effect(archive, head, claim.checked_to)
    states = tables.states(after=floor)
    gone = sorted(n for n, found in states.items() if n in in_effect and SUPERSEDED in found)
    if gone:
        raise LoadError(
            f"{tables.session.database.name}: load {', '.join(map(str, gone))} is in effect again after a "
            f"rewind, and its rows were removed from table {tables.table}: rewind to a commit before load "
            f"{gone[0]}, and they are read again"
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
            "table %s of %s: rows of load %s are removed, which was given up or rewound over",
            tables.table, tables.session.database.name, ", ".join(map(str, removed)),
        )  # fmt: skip
    return removed


def _in_effect(archive: Archive, head: int, checked_to: int) -> tuple[set[int], int]:
    """The loads in effect above a number that is returned too: below it nothing changed since the last time.

    What commit ``checked_to`` goes back to never changes; so where it is an ancestor of the newest commit,
    all that was so then is so now. After a rewind to before it, everything is looked at.
    """
    found, at = set(), head
    while at > checked_to:
        commit = archive.commit_at(at)
        if commit.mode in LOAD_MODES:
            found.add(at)
        at = commit.parent
    if at == checked_to:
        return found, checked_to
    while at:
        commit = archive.commit_at(at)
        if commit.mode in LOAD_MODES:
            found.add(at)
        at = commit.parent
    return found, 0


def _remove(tables: OffsetTables, archive: Archive, claim: TableRow, number: int) -> bool:
    """Take every key of a load, then remove its rows; whether there were any. Not committed."""
    _take_keys(tables, archive, claim, number)
    there = [row for row in tables.of_load(number) if row.state == WRITTEN]
    if not there:
        return False
    count = sum(row.row_count for row in there)
    if claim.load_column is None and count:
        raise LoadError(
            f"{tables.session.database.name}: load {number} was given up or rewound over, and table "
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
    plan = _plan(archive, number)
    if plan is None:
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


def _plan(archive: Archive, number: int) -> Plan | None:
    """The plan of a number; None where there is none, or none that any attempt could still read."""
    if not archive.store.exists(plan_name(number)):
        return None
    try:
        return archive.plan(number)
    except LoadError as e:
        log.warning("only the ranges that load %d wrote are known: %s", number, e)
        return None
