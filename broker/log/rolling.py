"""When a log begins a new segment."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from broker.config import LogConfig
from broker.log.family import LogFamily
from broker.log.segment import Segment
from broker.log.validation import CheckedBatch

_OFFSET_COUNT, _MAX_TIMESTAMP = attrgetter("offset_count"), attrgetter("max_timestamp")


def must_roll(
    active: Segment,
    batches: Sequence[CheckedBatch],
    size_bytes: int,
    config: LogConfig,
    family: LogFamily,
    *,
    now_ms: int,
    begun_ms: int,
) -> bool:
    """Whether ``batches`` are to go to a new segment: ``active`` is full by size or index, or too old.

    Its age is Kafka's: from the first record's time to the newest of ``batches``; where they have none it is
    counted from ``begun_ms``, when the first append came.

    Raises:
        CorruptMessage, OSError: the segment cannot be read.
    """
    if not active.size:
        return False
    if family.is_full(active.size, size_bytes, config.segment_bytes):
        return True
    last_offset = active.next_offset - 1 + sum(map(_OFFSET_COUNT, batches))
    newest = max(map(_MAX_TIMESTAMP, batches))
    if not active.has_room(size_bytes, last_offset, config.segment_index_bytes):
        return True
    first = active.first_timestamp()
    age_ms = newest - first if first >= 0 and newest >= 0 else now_ms - begun_ms
    return age_ms > config.segment_ms
