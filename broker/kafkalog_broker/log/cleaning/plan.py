"""Plans cleaning: which log is due, which part of it, and which segments are merged. Pure.

Source: Kafka 3.9 ``LogCleanerManager``, ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.offset_scheme import MAX_RELATIVE
from pyspark_kafkalog.types import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A full segment as the plan sees it. Timestamps are in ms, or `NO_TIMESTAMP`, and read on demand."""

    base_offset: int
    next_offset: int
    size_bytes: int
    modified_ms: int
    largest_timestamp: Callable[[], int]
    first_timestamp: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Dirt:
    """Segments up to ``end_offset``, clean below ``first_dirty``; ``overdue``: beyond the maximum lag."""

    first_dirty: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > config.min_cleanable_dirty_ratio)


class SourceSegment(NamedTuple):
    """A full segment: offsets ``[base_offset, next_offset)`` in the first ``size`` bytes of its file."""

    path: Path
    base_offset: int
    next_offset: int
    size: int
    modified_ms: int


def dirt_of(
    segments: Sequence[SegmentState], first_dirty: int, stable_offset: int, config: LogConfig, now_ms: int
) -> Dirt:
    """What to clean in a log with these full segments, up to the first with an open transaction
    (``stable_offset``) or a record younger than ``min.compaction.lag.ms``.
    """
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    earliest: int | None = None
    lag_ms, most_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    for segment in segments:
        if segment.next_offset <= first_dirty:
            clean_bytes += segment.size_bytes
            continue
        if segment.next_offset > stable_offset:
            break
        if lag_ms > 0:
            newest = segment.largest_timestamp()
            if (segment.modified_ms if newest == NO_TIMESTAMP else newest) > now_ms - lag_ms:
                break
        dirty_bytes += segment.size_bytes
        end_offset = segment.next_offset
        if earliest is None and segment.size_bytes:
            first = segment.first_timestamp()
            earliest = segment.modified_ms if first == NO_TIMESTAMP else first
    overdue = earliest is not None and earliest < now_ms - most_ms
    return Dirt(first_dirty, end_offset, clean_bytes, dirty_bytes, overdue)


def groups_of(sources: Sequence[SourceSegment], segment_bytes: int) -> list[tuple[int, int]]:
    """Index ranges of ``sources`` to merge, each within ``segment_bytes`` and the offsets of one index."""
    groups: list[tuple[int, int]] = []
    first = size = 0
    for number, source in enumerate(sources):
        relative = source.next_offset - 1 - sources[first].base_offset
        if number > first and (size + source.size > segment_bytes or relative > MAX_RELATIVE):
            groups.append((first, number))
            first, size = number, 0
        size += source.size
    if sources:
        groups.append((first, len(sources)))
    return groups


def legacy_horizon_ms(sources: Sequence[SourceSegment], first_dirty: int, delete_retention_ms: int) -> int:
    """v0 and v1 tombstones expire in segments modified up to this time; 0 if none was cleaned."""
    cleaned = [source for source in sources if source.base_offset < first_dirty]
    return cleaned[-1].modified_ms - delete_retention_ms if cleaned else 0
