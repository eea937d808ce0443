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

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kafkalog_broker.disk.data_directory import DataDirectory, read_table, write_table
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.segment import Segment, base_offset_of, segment_name

SEGMENT_LIST_NAME = "segments.list"

_logger = logging.getLogger(__name__)

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


class ListFile:
    """The list of one log as it goes on: what it says, and whether that is on the disk.

    *Not thread-safe*: changed under the log's lock, put on the disk (`sync`) under its maintenance.
    """

    def __init__(
        self, directory: Path, files: FileSystem, disk: DataDirectory, listed: SegmentList | None
    ) -> None:
        """``listed``: what is there; None where there is none."""
        self.is_due = False
        """Whether it is to be replaced."""
        self._directory = directory
        self._files = files
        self._disk = disk
        self._listed = listed
        self._unsynced = False  # whether it was replaced and may not be on the disk

    @property
    def cleaned_offset(self) -> int:
        """Below this a cleaner has taken offsets out."""
        return self._listed.cleaned_offset if self._listed is not None else 0

    def replace_if_due(self, segments: Sequence[Segment], start_offset: int) -> None:
        """Write down which segments there are since the last one was begun. Raises `OSError`.

        A full disk must not stop appends: a list may be older than the newest segments, a start knows that.
        """
        if self.is_due:
            try:
                self.replace(segments, start_offset)
            except OSError as e:
                if not self._disk.may_pass(e):
                    raise
                _logger.warning("%s could not be replaced: %s", self._directory / SEGMENT_LIST_NAME, e)

    def replace(
        self,
        segments: Sequence[Segment],
        start_offset: int,
        *,
        retired: tuple[int, ...] = (),
        cleaned_offset: int = 0,
    ) -> None:
        """Write down which segments there are, and where the log begins; `sync` puts that on the disk.
        Raises `OSError`.

        A list that is torn by a power cut says no start: one within a segment is put on the disk at once.
        """
        listed = SegmentList.of(
            segments,
            cleaned_offset=max(cleaned_offset, self.cleaned_offset),
            retired=retired,
            start_offset=start_offset,
        )
        durable = listed.start_offset > 0
        write_segment_list(self._files, self._directory, listed, durable=durable)
        self._listed, self._unsynced, self.is_due = listed, not durable, False

    def replace_without(self, expired: Sequence[Segment], kept: Sequence[Segment], start_offset: int) -> None:
        """The same before segments are deleted. Raises `OSError`.

        A full disk has no room even for the list: then there is none for a while, as this makes room. The
        log's start does not get lost with it: that is not within a segment that is kept.
        """
        try:
            self.replace(kept, start_offset, retired=tuple(segment.base_offset for segment in expired))
        except OSError as e:
            if not self._disk.may_pass(e):
                raise
            with suppress(FileNotFoundError):
                self._files.remove(self._directory / SEGMENT_LIST_NAME)
            self.is_due = True

    def sync(self) -> None:
        """Put the list on the disk if it has changed; its name is safe after the next directory sync.
        Raises `OSError`.
        """
        if not self._unsynced:
            return
        self._unsynced = False  # before: who replaces it meanwhile says so again
        try:
            file = self._files.open(self._directory / SEGMENT_LIST_NAME)
        except FileNotFoundError:
            return  # the disk was full
        try:
            file.sync()
        except OSError:
            self._unsynced = True
            raise
        finally:
            file.close()
