"""The written list of a log's segments: only with it can a start tell that one is missing.

``segments.list``, a sealed table (`checkpoint`) in the partition's directory::

    cleaned <offset>                   gaps between offsets are legal below it: a cleaner has been there
    start <offset>                     the log begins here, within its first segment: records were deleted
    retired <base offset> ...          segments that are being deleted; a start finishes that
    <segment file> <next> <bytes>      a full segment: the offset after its last one, and its size
    <segment file>                     the segment that is written, the last row

A log that has only ever had its first segment has no such file. The list is replaced when a segment is begun
(the next flush puts it on the disk, so that no append waits for that) and, durably, before segments are
deleted or moved aside. Segments above the last row were begun when the disk was full, or before a power cut
that took the newer list: they follow each other without a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from broker.disk.data_directory import read_table, write_table
from broker.disk.filesystem import FileSystem
from broker.log.segment import Segment, base_offset_of, segment_name

SEGMENT_LIST_NAME = "segments.list"

_CLEANED, _START, _RETIRED = "cleaned", "start", "retired"


class FullSegment(NamedTuple):
    """A segment that takes no more: offsets ``[base_offset, next_offset)`` in ``size`` bytes."""

    base_offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentList:
    """What ``segments.list`` says; ``active`` is the base offset of the segment that is written. Everything
    below ``start_offset`` was deleted, and was on the disk before; 0 where the log begins with a segment.
    """

    full: tuple[FullSegment, ...]
    active: int
    cleaned_offset: int = 0
    retired: tuple[int, ...] = ()
    start_offset: int = 0

    @classmethod
    def of(
        cls,
        segments: Iterable[Segment],
        *,
        cleaned_offset: int,
        retired: tuple[int, ...] = (),
        start_offset: int = 0,
    ) -> SegmentList:
        """The list for these segments; the last one is written."""
        *full, active = segments
        first = full[0] if full else active
        return cls(
            tuple(FullSegment(s.base_offset, s.next_offset, s.size) for s in full),
            active.base_offset,
            cleaned_offset,
            retired,
            start_offset if start_offset > first.base_offset else 0,
        )


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets ``[first, end)`` that a log should have, and has not; ``why`` names the file."""

    first: int
    end: int
    why: str

    def __str__(self) -> str:
        if self.end - self.first == 1:
            return f"offset {self.first} is missing: {self.why}"
        return f"offsets {self.first} to {self.end - 1} are missing: {self.why}"


def missing_segments(
    listed: SegmentList, sizes: Mapping[int, int], durable_offset: int, *, names: Mapping[int, str]
) -> list[Missing]:
    """What of the list is not among the segments that were found: base offset to size, and to file name.

    A full segment that is shorter than it was counts only if all of it was known to be on the disk (below
    ``durable_offset``): else a crash may have done that. The segment that was written must be there if any
    of it is below ``durable_offset``, or others were begun after it: else its name may not have reached the
    disk.
    """
    missing = []
    for segment in listed.full:
        size = sizes.get(segment.base_offset)
        name = names.get(segment.base_offset, segment_name(segment.base_offset))
        if size is None:
            missing.append(Missing(segment.base_offset, segment.next_offset, f"{name} is not there"))
        elif size < segment.size and segment.next_offset <= durable_offset:
            why = f"{name} has {size} bytes, it had {segment.size}"
            missing.append(Missing(segment.base_offset, segment.next_offset, why))
    if listed.active not in sizes:
        end_offset = min((base for base in sizes if base > listed.active), default=durable_offset)
        if end_offset > listed.active:
            why = f"{segment_name(listed.active)} is not there"
            missing.append(Missing(listed.active, end_offset, why))
    return missing


def unlisted(listed: SegmentList, found: Collection[int]) -> list[int]:
    """Base offsets among those found that are no segments of this log: lower than the newest that is listed,
    and not listed. Those above it were begun after the list was written.
    """
    known = {segment.base_offset for segment in listed.full} | {listed.active}
    return [base_offset for base_offset in found if base_offset < listed.active and base_offset not in known]


def write_segment_list(
    files: FileSystem, directory: Path, segments: SegmentList, *, durable: bool = False
) -> None:
    """Replace the list. Raises `OSError`; the old one then stays."""
    rows: dict[str, tuple[int, ...]] = {_CLEANED: (segments.cleaned_offset,)}
    if segments.start_offset:
        rows[_START] = (segments.start_offset,)
    if segments.retired:
        rows[_RETIRED] = segments.retired
    for segment in segments.full:
        rows[segment_name(segment.base_offset)] = (segment.next_offset, segment.size)
    rows[segment_name(segments.active)] = ()
    write_table(files, directory / SEGMENT_LIST_NAME, rows, durable=durable)


def read_segment_list(files: FileSystem, directory: Path) -> SegmentList | None:
    """The list in a partition's directory; None when there is none or it is not whole. Raises `OSError`."""
    rows = read_table(files, directory / SEGMENT_LIST_NAME)
    if rows is None:
        return None
    full, active = [], None
    for name, numbers in rows.items():
        base_offset = base_offset_of(name)
        if base_offset is not None and len(numbers) == 2:
            full.append(FullSegment(base_offset, *numbers))
        elif base_offset is not None:
            active = base_offset
    if active is None:
        return None
    (cleaned_offset,) = rows.get(_CLEANED, (0,))
    (start_offset,) = rows.get(_START, (0,))
    return SegmentList(tuple(full), active, cleaned_offset, rows.get(_RETIRED, ()), start_offset)
