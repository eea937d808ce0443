"""Stored list of a log's segments, with which a start can detect a missing one.

``segments.list``, a sealed table (`write_table`) in the partition's directory::

    cleaned <offset>                   below it, gaps between offsets are allowed: cleaned
    start <offset>                     the log starts here, inside its first segment: records were deleted
    retired <base offset> ...          segments being deleted; a start finishes that
    <segment file> <next> <bytes>      a full segment: its end offset and size
    <segment file>                     the active segment, the last row

Absent until a log's second segment. Replaced when a segment is started (synced by the next flush) and,
durably, before segments are deleted or moved aside. Segments above the last row, without gaps, were started
while the disk was full, or before a power cut that lost the newer list.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kafkalog_broker.disk.data_directory import may_pass, read_table, write_table
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.segment import Segment, base_offset_of, segment_name

SEGMENT_LIST_NAME = "segments.list"

_logger = logging.getLogger(__name__)

_CLEANED, _START, _RETIRED = "cleaned", "start", "retired"


class FullSegment(NamedTuple):
    base_offset: int
    next_offset: int
    size: int


class SegmentList(msgspec.Struct, frozen=True):
    """Content of ``segments.list``; ``start_offset`` is 0 unless inside the first segment."""

    full: tuple[FullSegment, ...]
    active: int
    cleaned_offset: int = 0
    retired: tuple[int, ...] = ()
    start_offset: int = 0

    @classmethod
    def of(
        cls, segments: Iterable[Segment], *, cleaned_offset: int, start_offset: int, retired: tuple[int, ...]
    ) -> SegmentList:
        *full, active = segments
        first = full[0] if full else active
        return cls(
            tuple(FullSegment(s.base_offset, s.next_offset, s.size) for s in full),
            active.base_offset,
            cleaned_offset,
            retired,
            start_offset if start_offset > first.base_offset else 0,
        )


class Missing(msgspec.Struct, frozen=True):
    """Missing offsets ``[first, end)`` of a log; ``why`` names the file."""

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
    """Listed segments that are missing or too short. A crash may shorten one above ``durable_offset``."""
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
    """Base offsets below the active segment that are not listed; higher ones are newer than the list."""
    known = {segment.base_offset for segment in listed.full} | {listed.active}
    return [base_offset for base_offset in found if base_offset < listed.active and base_offset not in known]


def write_segment_list(
    files: FileSystem, directory: Path, segments: SegmentList, *, durable: bool = False
) -> None:
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
    """The list in a partition's directory; None if missing or damaged. Raises `OSError`."""
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
    """A log's segment list and its file. *Not thread-safe*: the log's locks guard it."""

    def __init__(
        self, directory: Path, files: FileSystem, listed: SegmentList | None, *, is_due: bool
    ) -> None:
        self.is_due = is_due
        self._directory = directory
        self._files = files
        self._listed = listed
        self._unsynced = False  # replaced but maybe not durable
        self.dropped: list[Segment] = []
        """Segments that are not in the list any more, but whose files are not renamed yet."""

    @property
    def start_offset(self) -> int:
        return self._listed.start_offset if self._listed is not None else 0

    @property
    def cleaned_offset(self) -> int:
        return self._listed.cleaned_offset if self._listed is not None else 0

    def replace_if_due(self, segments: Sequence[Segment], start_offset: int) -> None:
        """Write the list if a segment was started. A full disk is only logged: appends continue."""
        if self.is_due:
            try:
                self.replace(segments, start_offset)
            except OSError as e:
                if not may_pass(e):
                    raise
                _logger.warning("%s could not be replaced: %s", self._directory / SEGMENT_LIST_NAME, e)

    def replace(
        self,
        segments: Sequence[Segment],
        start_offset: int,
        *,
        expired: Sequence[Segment] = (),
        retired: tuple[int, ...] = (),
        cleaned_offset: int = 0,
        durable: bool = False,
    ) -> None:
        """Write the list; `sync` makes it durable unless ``durable``. A start inside a segment always is.
        ``expired``: dropped from the log; call `rename_dropped`. ``retired``: others that a start removes.
        """
        dropped = [*self.dropped, *expired]
        listed = SegmentList.of(
            segments,
            cleaned_offset=max(cleaned_offset, self.cleaned_offset),
            retired=(*retired, *(segment.base_offset for segment in dropped)),
            start_offset=start_offset,
        )
        durable = durable or listed.start_offset > 0
        write_segment_list(self._files, self._directory, listed, durable=durable)
        self._listed, self._unsynced, self.is_due, self.dropped = listed, not durable, False, dropped

    def replace_without(self, expired: Sequence[Segment], kept: Sequence[Segment], start_offset: int) -> None:
        """Write the list before segments are deleted. If the disk is too full for it, remove it until they
        are gone. This loses no start offset: the log then starts with a segment.
        """
        try:
            self.replace(kept, start_offset, expired=expired)
        except OSError as e:
            if not may_pass(e):
                raise
            with suppress(FileNotFoundError):
                self._files.remove(self._directory / SEGMENT_LIST_NAME)
            self.is_due = True
            self.dropped += expired

    def rename_dropped(self) -> list[Path]:
        """Rename the files of dropped segments; returns those to remove. What a full disk refuses stays for
        the next time. Raises `OSError`.
        """
        gone: list[Path] = []
        if not self.dropped:
            return gone
        try:
            # A segment removed while still listed would look like lost data.
            self.sync()
            self._files.sync_directory(self._directory)
            while self.dropped:
                gone.extend(self.dropped[0].rename_deleted())
                del self.dropped[0]
            self._files.sync_directory(self._directory)
        except OSError as e:
            if not may_pass(e):
                raise
            _logger.warning("%s: files of deleted segments stay for now: %s", self._directory, e)
        return gone

    def sync(self) -> None:
        """Sync the list if it changed; its name needs a directory sync. Raises `OSError`."""
        if not self._unsynced:
            return
        self._unsynced = False  # before syncing: a concurrent replace sets it again
        try:
            with closing(self._files.open(self._directory / SEGMENT_LIST_NAME)) as file:
                file.sync()
        except FileNotFoundError:
            return  # the disk was full
        except OSError:
            self._unsynced = True
            raise
