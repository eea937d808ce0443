"""What a query's filters say about which offsets need not be read. Pure.

Filters only leave out what cannot match; Spark applies each of them again to the rows that are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rows that all filters together can let through; None is no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """One behind the last offset that may match."""
    since_ms: int | None = None
    """No record of an earlier millisecond can match. There is no bound at the other end: times of records
    need not grow with their offsets, so what lies behind a time cannot be told from the log."""

    def admits(self, partition: TopicPartition) -> bool:
        """Whether any row of this partition may match."""
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds of a conjunction of filters, as ``pushFilters`` gets it; those that bound nothing are passed
    over: on other columns, negations, patterns, comparisons with null.
    """
    bounds = Bounds()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if len(attribute) == 1 and value is not None:
            bounds = _narrowed(bounds, type(each).__name__, attribute[0].lower(), value)
    return bounds


def _narrowed(bounds: Bounds, kind: str, column: str, value: object) -> Bounds:
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        values = frozenset(value) if kind == "In" and isinstance(value, (tuple, list)) else frozenset([value])
        return _one_of(bounds, column, values - {None})
    if column == "offset" and isinstance(value, int):
        return _offset_bound(bounds, kind, value)
    if (
        column == "timestamp"
        and isinstance(value, datetime)
        and kind in ("GreaterThan", "GreaterThanOrEqual")
    ):
        return _since(bounds, value)
    return bounds


def _one_of(bounds: Bounds, column: str, values: frozenset[object]) -> Bounds:
    if column == "topic":
        return replace(bounds, topics=_both(bounds.topics, {v for v in values if isinstance(v, str)}))
    numbers = {v for v in values if isinstance(v, int)}
    if column == "partition":
        return replace(bounds, partitions=_both(bounds.partitions, numbers))
    if column == "offset":
        # Of no value at all nothing can match: an empty range says so.
        first, end = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
        return _offset_bound(_offset_bound(bounds, "GreaterThanOrEqual", first), "LessThan", end)
    times = [v for v in values if isinstance(v, datetime)]
    return _since(bounds, min(times)) if column == "timestamp" and times else bounds


def _offset_bound(bounds: Bounds, kind: str, value: int) -> Bounds:
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        first = value + (kind == "GreaterThan")
        return replace(bounds, first_offset=max(first, bounds.first_offset or 0))
    if kind in ("LessThan", "LessThanOrEqual"):
        end = max(0, value + (kind == "LessThanOrEqual"))
        return replace(bounds, end_offset=end if bounds.end_offset is None else min(end, bounds.end_offset))
    return bounds


def _since(bounds: Bounds, time: datetime) -> Bounds:
    # Microseconds are cut off: the log knows milliseconds, and an earlier bound leaves out less.
    since = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    milliseconds = (since - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        # Records without a time are of -1 in the column, and no look-up finds them.
        return bounds
    return replace(bounds, since_ms=max(milliseconds, bounds.since_ms or 0))


def _both(former: frozenset[T] | None, values: set[T]) -> frozenset[T]:
    return frozenset(values) if former is None else former & values
