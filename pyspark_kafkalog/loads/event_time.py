"""Directories by event time: the columns that say in which day and hour, in UTC, a record was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GRAINS = {"day": ("day",), "hour": ("day", "hour")}
"""The columns of each grain: ``day`` is a date, ``hour`` a number from 0 to 23."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


def with_event_time(frame: DataFrame, column: str, grain: str) -> DataFrame:
    """``frame`` with the columns of ``grain`` added, made of a timestamp, or for days of a date.

    They are of UTC whatever the session's time zone is, so that a replay makes the same directories. A record
    without a time has null there.

    Raises:
        InvalidConfig: there is no such grain or column, it is of another type, or the names are taken.
    """
    if grain not in GRAINS:
        raise InvalidConfig(f"grain is one of {', '.join(GRAINS)}; got {grain!r}")
    kind = next(
        (field.dataType.simpleString() for field in frame.schema.fields if field.name == column), None
    )
    if kind is None:
        raise InvalidConfig(f"partition_by_time names {column}; columns: {', '.join(frame.columns)}")
    taken = [name for name in frame.columns if name.lower() in GRAINS[grain]]
    if taken:
        raise InvalidConfig(
            f"partition_by_time makes the columns {', '.join(GRAINS[grain])}: rename {taken[0]}"
        )
    made = _expressions(column, kind, grain)
    return frame.selectExpr("*", *(f"{made[name]} AS {name}" for name in GRAINS[grain]))


def _expressions(column: str, kind: str, grain: str) -> dict[str, str]:
    """SQL for the day and the hour. Whole numbers only: it must be exact before 1970 as well."""
    name = f"`{column.replace('`', '``')}`"
    if kind == "timestamp":
        micros = f"unix_micros({name})"
        return {
            "day": f"date_from_unix_date(CAST(({micros} - pmod({micros}, {_DAY_US})) DIV {_DAY_US} AS INT))",
            "hour": f"CAST(pmod({micros}, {_DAY_US}) DIV {_HOUR_US} AS INT)",
        }
    if kind == "timestamp_ntz" or (kind == "date" and grain == "day"):
        return {"day": f"CAST({name} AS DATE)", "hour": f"hour({name})"}
    wanted = "a timestamp or a date" if grain == "day" else "a timestamp"
    raise InvalidConfig(f"partition_by_time needs {wanted}, and {column} is {kind}: cast it")
