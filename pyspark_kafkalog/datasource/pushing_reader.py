"""The batch read that leaves out what a query's filters rule out, where users ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_kafkalog.datasource.batch_reader import BatchReader
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.datasource.pushdown import Bounds, bounds_of
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from pyspark_kafkalog.datasource.generations import SourceLookup


class PushingReader(BatchReader):
    """A reader of its own, since one that merely has ``pushFilters`` fails every read of a session that does
    not push filters, which is Spark's default.
    """

    _bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Note what the filters rule out, and hand all of them back: Spark applies them to the rows."""
        self._bounds = bounds_of(filters)
        return filters

    def _plan(self, lookup: SourceLookup, partitions: Sequence[TopicPartition]) -> list[OffsetRange]:
        planned = [r for r in super()._plan(lookup, partitions) if self._bounds.admits(r.topic_partition)]
        if self._options.v07 is not None:
            # Positions in bytes: only where an entry begins can a range, and times are not in the messages.
            return planned
        if self._bounds.first_offset is self._bounds.end_offset is self._bounds.since_ms is None:
            return planned
        return self._cut(lookup, planned)

    def _cut(self, lookup: SourceLookup, planned: list[OffsetRange]) -> list[OffsetRange]:
        """Leave out the offsets that cannot match; a placeholder stays where nothing is cut off."""
        where = sorted({r.topic_partition for r in planned})
        begins = lookup.resolve(dict.fromkeys(where, EARLIEST_OFFSET))
        # Before the look-up of times: what is written between the two is then behind the end, and is read.
        ends = lookup.resolve(dict.fromkeys(where, LATEST_OFFSET))
        firsts = self._first_matches(lookup, ends)
        cut = []
        for r in planned:
            p = r.topic_partition
            start = begins[p] if r.start == EARLIEST_OFFSET else r.start
            end = ends[p] if r.end == LATEST_OFFSET else r.end
            first = min(max(start, firsts[p]), max(start, end))
            last = end if self._bounds.end_offset is None else min(end, self._bounds.end_offset)
            # What is empty now may have rows when the task binds its end.
            open_end = r.end == LATEST_OFFSET and last == end
            if first < last or open_end:
                cut.append(
                    OffsetRange(p, r.start if first == start else first, r.end if last == end else last)
                )
        return cut

    def _first_matches(
        self, lookup: SourceLookup, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Before these offsets nothing can match."""
        firsts = dict.fromkeys(ends, self._bounds.first_offset or 0)
        if self._bounds.since_ms is None:
            return firsts
        found = lookup.offsets(dict.fromkeys(ends, self._bounds.since_ms))
        return {p: max(first, found[p] if found[p] >= 0 else ends[p]) for p, first in firsts.items()}
