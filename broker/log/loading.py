"""Opens a partition's directory: after a clean stop by what was noted then, after a crash by looking."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from broker.config import LogConfig
from broker.log.filesystem import Entry
from broker.log.segment import DELETED_SUFFIX, Segment, base_offset_of, segment_name
from broker.log.tools import LogTools

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanState:
    """What a clean stop notes of a log: where it ends, and in which segment of which size."""

    end_offset: int
    last_base_offset: int
    last_size: int


def new_segment(directory: Path, base_offset: int, config: LogConfig, tools: LogTools) -> Segment:
    """Create an empty segment file. Raises `OSError`."""
    path = directory / segment_name(base_offset)
    tools.pool.release(tools.pool.acquire(path, create=True))
    return _segment(path, base_offset, config, tools, size=0, next_offset=base_offset)


def load_segments(
    directory: Path,
    config: LogConfig,
    tools: LogTools,
    *,
    clean: CleanState | None,
    recovery_point: int,
) -> tuple[list[Segment], int]:
    """The segments in ``directory``, in order, at least one, the last one growing; and the offset below which
    they are known to be on the disk.

    After a clean stop nothing is read but the directory. Otherwise each segment that is not wholly below
    ``recovery_point`` is checked, cut at its first invalid entry, and what lies behind a cut is removed.

    Raises:
        OSError: the disk refused.
    """
    found: list[tuple[int, Entry]] = []
    for entry in tools.files.scan(directory):
        base_offset = base_offset_of(entry.name)
        if base_offset is not None and not entry.is_directory:
            found.append((base_offset, entry))
        elif entry.name.endswith((DELETED_SUFFIX, ".tmp")):
            tools.files.remove(directory / entry.name)
    found.sort()
    segments = []
    for number, (base_offset, entry) in enumerate(found):
        last = number == len(found) - 1
        segments.append(
            _segment(
                directory / entry.name,
                base_offset,
                config,
                tools,
                size=entry.size,
                next_offset=base_offset if last else found[number + 1][0],
                growing=last,
                modified_ms=entry.modified_ms,
            )
        )
    if not segments:
        return [new_segment(directory, 0, config, tools)], 0
    last_segment = segments[-1]
    if clean is not None:
        if (last_segment.base_offset, last_segment.size) == (clean.last_base_offset, clean.last_size):
            last_segment.next_offset = clean.end_offset
            return segments, clean.end_offset
        _logger.warning("%s is not as it was closed; its last segment is checked", directory)
        recovery_point = min(recovery_point, last_segment.base_offset)
    return _recover(directory, segments, config, tools, recovery_point), recovery_point


def _recover(
    directory: Path, segments: list[Segment], config: LogConfig, tools: LogTools, recovery_point: int
) -> list[Segment]:
    """Check what is not known to be on the disk; afterwards every segment holds valid entries only."""
    # Only a cleaner leaves gaps; elsewhere one means that what was between is lost.
    gaps_allowed = "compact" in config.cleanup_policy
    kept: list[Segment] = []
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if not last and segment.next_offset <= recovery_point:
            kept.append(segment)
            continue
        if kept and segment.base_offset != kept[-1].next_offset and not gaps_allowed:
            fault: str | None = f"{segment.path.name} does not follow offset {kept[-1].next_offset - 1}"
        else:
            fault = segment.check(gaps_allowed=gaps_allowed)
            kept.append(segment)
        if fault is not None:
            _remove(segments[len(kept) :], tools)
            _logger.warning("%s: cut at offset %d: %s", directory, kept[-1].next_offset, fault)
            break
    for segment in kept[:-1]:
        segment.stop_growing()
    kept[-1].growing = True
    return kept


def _remove(segments: list[Segment], tools: LogTools) -> None:
    for segment in segments:
        for path in segment.rename_deleted():
            tools.files.remove(path)


def _segment(
    path: Path,
    base_offset: int,
    config: LogConfig,
    tools: LogTools,
    *,
    size: int,
    next_offset: int,
    growing: bool = True,
    modified_ms: int | None = None,
) -> Segment:
    return Segment(
        path,
        base_offset,
        tools,
        lambda: tools.family.scheme(base_offset, path, config.index_interval_bytes, tools.pool),
        size=size,
        next_offset=next_offset,
        growing=growing,
        modified_ms=tools.clock.time_ms() if modified_ms is None else modified_ms,
    )
