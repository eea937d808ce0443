"""Offsets by the times of segments: what 0.7 answers to OFFSETS. Pure.

As fine as a whole segment, which is all that can be said where messages have no time.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.log.retention import SegmentFacts
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def offsets_before(
    segments: Sequence[SegmentFacts], readable_end: int, now_ms: int, timestamp: int, max_count: int
) -> tuple[int, ...]:
    """Starts of segments last changed at ``timestamp`` or before, the youngest first, at most ``max_count``.

    Before them comes ``readable_end``, if something can be read of the last segment; its time is ``now_ms``.
    `LATEST_TIMESTAMP` stands for all of these, `EARLIEST_TIMESTAMP` for the oldest alone, and any other
    negative time for none. Sources: 0.7.2 ``Log.getOffsetsBefore``,
    Kafka 3.9 ``UnifiedLog.legacyFetchOffsetsBefore``.
    """
    # A segment that was begun behind what is on the disk cannot be read yet.
    found = [(s.base_offset, s.modified_ms) for s in segments if s.base_offset <= readable_end]
    if found and found[-1][0] < readable_end:
        found.append((readable_end, now_ms))
    if timestamp == LATEST_TIMESTAMP:
        count = len(found)
    elif timestamp == EARLIEST_TIMESTAMP:
        count = min(1, len(found))
    else:
        count = next((n for n in range(len(found), 0, -1) if found[n - 1][1] <= timestamp), 0)
    return tuple(offset for offset, _ in reversed(found[max(0, count - max_count) : count]))
