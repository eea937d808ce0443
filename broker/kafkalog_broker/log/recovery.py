"""Opens a partition's directory from the state of a clean stop, or after a crash by checking entries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import may_pass
from kafkalog_broker.disk.filesystem import DirectoryEntry
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX
from kafkalog_broker.log.cleaning.swap import (
    SWAP_SUFFIX,
    decided_in,
    finish_decided,
    leftovers_in,
    with_decided,
)
from kafkalog_broker.log.family import LogTools
from kafkalog_broker.log.segment import DELETED_SUFFIX, SUFFIX, Segment, base_offset_of, segment_name
from kafkalog_broker.log.segment_list import (
    SEGMENT_LIST_NAME,
    Missing,
    SegmentList,
    missing_segments,
    read_segment_list,
    unlisted,
    write_segment_list,
)
from pyspark_kafkalog.errors import CorruptMessage, StorageError

STRAY_NAME = "stray"
"""Subdirectory of a partition for segments taken out of the log; only deleting the topic removes it."""

_LISTED = 5

_logger = logging.getLogger(__name__)


class CleanState(msgspec.Struct, frozen=True):
    end_offset: int
    last_base_offset: int
    last_size: int
    in_transaction: bool = False


class Loaded(msgspec.Struct, frozen=True):
    """A log's segments, at least one, the last one growing; its durable end; its stored list, or None, and
    whether that must be replaced.
    """

    segments: list[Segment]
    flushed_offset: int
    listed: SegmentList | None
    list_is_due: bool


class MissingSegments(StorageError):
    """Part of the log is missing; nothing was changed. ``missing_text``, for clients, omits the advice."""

    def __init__(self, directory: Path, missing: Sequence[Missing]) -> None:
        text = "; ".join(map(str, missing[:_LISTED]))
        more = f"; and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        self.resume = max(each.end for each in missing)
        self.missing_text = text + more
        super().__init__(
            f"{self.missing_text}. Stop the broker and put the files back into {directory}, or start it with"
            f" log.missing.segments=truncate: the log then begins after them, at offset {self.resume}, and"
            f" the segments before that are moved to {directory / STRAY_NAME}"
        )
        self.missing = tuple(missing)


def new_segment(directory: Path, base_offset: int, config: LogConfig, tools: LogTools) -> Segment:
    path = directory / segment_name(base_offset)
    tools.pool.release(tools.pool.acquire(path, create=True))
    return Segment(path, base_offset, tools, config, size=0, next_offset=base_offset)


def cleaned_segment(
    path: Path, like: Sequence[Segment], size: int, config: LogConfig, tools: LogTools
) -> Segment:
    return Segment(
        path, like[0].base_offset, tools, config, size=size, next_offset=like[-1].next_offset, growing=False,
        modified_ms=like[-1].modified_ms, gaps_allowed=True,
    )  # fmt: skip


@dataclass(slots=True)
class Loading:
    """*Not thread-safe.* Opens the log in a partition's directory.

    After a clean stop only the directory and the segment list are read. Otherwise each segment reaching above
    ``recovery_point`` is checked, truncated at the first invalid entry, and later ones are moved aside. If
    data below ``recovery_point`` or a clean stop's end is missing, which no crash explains, the log starts
    after it with ``truncate_missing``, else `run` raises `MissingSegments`.
    """

    _directory: Path
    _config: LogConfig
    _tools: LogTools
    _clean: CleanState | None
    _recovery_point: int
    _truncate_missing: bool
    _durable_offset: int = 0
    _listed: SegmentList | None = None
    _cleaned_offset: int = 0
    _on_disk: SegmentList | None = None
    _had_list: bool = False
    _stray: list[Segment] = field(default_factory=list)
    _truncated: bool = False
    _list_is_due: bool = False
    _aborted: set[str] | None = None
    """Names of segments, without suffix, that have a file of aborted transactions, if that is known."""

    def run(self) -> Loaded:
        self._durable_offset = max(self._recovery_point, self._clean.end_offset if self._clean else 0)
        segments = self._look()
        while True:
            missing = self._missing(segments)
            if not missing and segments:
                try:
                    kept, flushed = self._open(segments)
                    break
                except MissingSegments as e:
                    missing = list(e.missing)
            if missing:
                error = MissingSegments(self._directory, missing)
                if not self._truncate_missing:
                    raise error
                segments = self._resume(segments, error)
            if not segments:
                known = self._listed.active if self._listed is not None else 0
                start = max(self._durable_offset, known)
                kept = [new_segment(self._directory, start, self._config, self._tools)]
                flushed = start
                break
        self._finish(kept)
        return Loaded(kept, flushed, self._on_disk, self._list_is_due)

    def _look(self) -> list[Segment]:
        tools, found = self._tools, []
        entries = tools.files.scan(self._directory, (SUFFIX, SWAP_SUFFIX))
        for name in leftovers_in(entries):
            tools.files.remove(self._directory / name)
        for entry in entries:
            base_offset = base_offset_of(entry.name)
            if base_offset is not None and not entry.is_directory:
                found.append((base_offset, entry))
            elif entry.name == SEGMENT_LIST_NAME:
                self._had_list = True
            elif entry.name.endswith((DELETED_SUFFIX, ".tmp")) and not entry.is_directory:
                tools.files.remove(self._directory / entry.name)
        found.sort()
        if self._had_list:
            self._listed = self._on_disk = read_segment_list(tools.files, self._directory)
            if self._listed is None:
                _logger.warning(
                    "%s is damaged: missing segments are found only by comparing those that are there",
                    self._directory / SEGMENT_LIST_NAME,
                )
        decided = decided_in(entries)
        if not decided:  # else there will be others
            names = [entry.name for entry in entries if entry.name.endswith(ABORTED_SUFFIX)]
            self._aborted = {name.removesuffix(ABORTED_SUFFIX) for name in names}
        if decided and self._listed is not None:
            self._listed = self._on_disk = with_decided(self._listed, decided)
            write_segment_list(tools.files, self._directory, self._listed, durable=True)
        for swap in decided:
            found = finish_decided(tools.files, self._directory, swap, found)
            _logger.info("%s: the cleaning of offsets below %d is finished", self._directory, swap.end_offset)
        if self._listed is not None:
            self._cleaned_offset = self._listed.cleaned_offset
            self._durable_offset = max(self._durable_offset, self._listed.start_offset)
        elif "compact" in self._config.cleanup_policy and found:
            self._cleaned_offset = found[-1][0]  # unknown how far the cleaner got
        return self._segments(self._known(found))

    def _segments(self, found: list[tuple[int, DirectoryEntry]]) -> list[Segment]:
        listed = {s.base_offset: s for s in self._listed.full} if self._listed is not None else {}
        segments = []
        for number, (base_offset, entry) in enumerate(found):
            last = number == len(found) - 1
            size, full = entry.size, listed.get(base_offset)
            next_offset = base_offset if last else found[number + 1][0]
            if full is not None and not last:
                next_offset = full.next_offset
                if size > full.size:
                    _logger.warning(
                        "%s has %d bytes after the %d that the list of segments counts: they are left out",
                        self._directory / entry.name, size - full.size, full.size,
                    )  # fmt: skip
                    size = full.size
            segment = Segment(
                self._directory / entry.name, base_offset, self._tools, self._config,
                size=size, next_offset=next_offset, growing=last, modified_ms=entry.modified_ms,
                gaps_allowed=base_offset < self._cleaned_offset,
                has_aborted=self._aborted is None or entry.name.removesuffix(SUFFIX) in self._aborted,
            )  # fmt: skip
            segments.append(segment)
        return segments

    def _known(self, found: list[tuple[int, DirectoryEntry]]) -> list[tuple[int, DirectoryEntry]]:
        """Only the log's own segments; removes those being deleted and sets others aside."""
        listed = self._listed
        if listed is None:
            return found
        unknown = set(unlisted(listed, [base_offset for base_offset, _ in found]))
        for base_offset, entry in found:
            if base_offset in unknown:
                (segment,) = self._segments([(base_offset, entry)])
                if base_offset not in listed.retired:
                    self._stray.append(segment)
                    continue
                for path in segment.rename_deleted():
                    self._tools.files.remove(path)
        return [each for each in found if each[0] not in unknown]

    def _missing(self, segments: list[Segment]) -> list[Missing]:
        missing: list[Missing] = []
        listed, clean = self._listed, self._clean
        first_unlisted = 0
        if listed is not None:
            sizes = {s.base_offset: s.size for s in segments}
            names = {s.base_offset: s.path.name for s in segments}
            missing += missing_segments(listed, sizes, self._durable_offset, names=names)
            first_unlisted = listed.active
        if not missing:
            for segment, following in pairwise(segments):
                if segment.base_offset >= first_unlisted and following.base_offset <= self._durable_offset:
                    missing += self._between(segment, following)
        if not missing and clean and segments and segments[-1].base_offset < clean.last_base_offset:
            why = f"{segment_name(clean.last_base_offset)} is not there"
            missing.append(Missing(clean.last_base_offset, clean.end_offset, why))
        if not segments and listed is None and self._durable_offset > 0:
            missing.append(Missing(0, self._durable_offset, "no segment is there"))
        return [each for each in missing if each.end > each.first]

    def _between(self, segment: Segment, following: Segment) -> list[Missing]:
        """Gap between two unlisted segments that were both durable before the stop."""
        if segment.gaps_allowed:
            return []
        try:
            end_offset = segment.end_in_file()
        except CorruptMessage as e:
            _logger.error("%s: cannot check whether it is complete: %s", segment.path, e)
            return []
        if end_offset >= following.base_offset:
            return []
        why = f"{segment.path.name} ends before them, and {following.path.name} is the next"
        return [Missing(end_offset, following.base_offset, why)]

    def _resume(self, segments: list[Segment], error: MissingSegments) -> list[Segment]:
        before = [s for s in segments if s.base_offset < error.resume]
        self._stray += before
        self._truncated = True
        _logger.error(
            "%s: %s. The log now begins after that, at offset %d (log.missing.segments=truncate)",
            self._directory, "; ".join(map(str, error.missing[:_LISTED])), error.resume,
        )  # fmt: skip
        listed = self._listed
        rest = segments[len(before) :]
        if listed is not None:
            full = tuple(each for each in listed.full if each.base_offset >= error.resume)
            active = listed.active
            if active < error.resume:
                active = rest[0].base_offset if rest else error.resume
            self._listed = replace(listed, full=full, active=active)
        return rest

    def _open(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        last, clean = segments[-1], self._clean
        if clean is not None:
            if (last.base_offset, last.size) == (clean.last_base_offset, clean.last_size):
                last.next_offset = clean.end_offset
                return segments, clean.end_offset
            _logger.warning("%s is not as it was closed; its last segment is checked", self._directory)
        checked_from = self._recovery_point if clean is None else last.base_offset
        return self._recover(segments, checked_from), checked_from

    def _recover(self, segments: list[Segment], checked_from: int) -> list[Segment]:
        """Check segments that may not be durable; damage to durable data stays in them."""
        kept: list[Segment] = []
        damaged: tuple[str, ...] = ()
        fault: str | None = None
        for number, segment in enumerate(segments):
            last = number == len(segments) - 1
            if not last and segment.next_offset <= checked_from:
                kept.append(segment)
                continue
            before = kept[-1] if kept else None
            if before is not None and self._lost_before(segment, before):
                fault = f"{segment.path.name} does not follow offset {before.next_offset - 1}"
            else:
                end_offset = segment.next_offset
                found = segment.check(durable_offset=self._durable_offset, last=last)
                fault, damaged = found.fault, found.damaged
                for place in damaged:
                    _logger.error(
                        "%s, %s. It was on the disk, and is left as it is: who reads it gets CORRUPT_MESSAGE",
                        segment.path, place,
                    )  # fmt: skip
                if fault is not None and found.next_offset < self._durable_offset:
                    end = self._durable_offset if last else end_offset
                    raise self._lost(
                        found.next_offset, end, f"{segment.path.name}, byte {found.size}: {fault}"
                    )
                kept.append(segment)
            if fault is not None:
                self._stray += segments[len(kept) :]
                _logger.warning("%s: cut at offset %d: %s", self._directory, kept[-1].next_offset, fault)
                break
        end_offset = kept[-1].next_offset
        if end_offset < self._durable_offset:
            why = f"{kept[-1].path.name} ends before them, and no segment follows"
            raise self._lost(end_offset, self._durable_offset, why)
        if damaged:
            # Do not append after damage: its segment stays as it is.
            kept.append(new_segment(self._directory, end_offset, self._config, self._tools))
        for segment in kept[:-1]:
            segment.stop_growing()
        kept[-1].growing = True
        return kept

    def _lost_before(self, segment: Segment, before: Segment) -> bool:
        """Whether a crash lost data between two segments. Raises `MissingSegments` if it cannot have."""
        gap = segment.base_offset - before.next_offset
        if not gap or (gap > 0 and segment.base_offset <= self._cleaned_offset):
            return False
        if gap > 0 and before.next_offset < self._durable_offset:
            why = f"{before.path.name} ends before them, and {segment.path.name} is the next"
            raise self._lost(before.next_offset, segment.base_offset, why)
        return True

    def _lost(self, first: int, end: int, why: str) -> MissingSegments:
        return MissingSegments(self._directory, [Missing(first, end, why)])

    def _finish(self, kept: list[Segment]) -> None:
        tools = self._tools
        before = self._on_disk
        listed = SegmentList.of(
            kept,
            cleaned_offset=min(self._cleaned_offset, kept[-1].base_offset),
            start_offset=before.start_offset if before is not None else 0,
            retired=(),
        )
        needed = self._had_list or len(kept) > 1 or kept[0].base_offset > 0
        same = before is not None and (before.full, before.active) == (listed.full, listed.active)
        if before is not None and before.active > kept[-1].base_offset and not self._stray:
            _logger.warning(
                "%s: segment %s, which was begun before the crash, is missing; perhaps nothing of it"
                " had reached the disk: the log ends at offset %d",
                self._directory, segment_name(before.active), kept[-1].next_offset,
            )  # fmt: skip
        if needed and not same:
            fewer = bool(self._stray) or self._truncated
            if fewer:
                tools.files.sync_directory(self._directory)
            durable = fewer or listed.start_offset > 0
            try:
                write_segment_list(tools.files, self._directory, listed, durable=durable)
                self._on_disk = listed
            except OSError as e:
                # The old list serves as well if it only lacks the newest segments.
                lacks_newest = not fewer and (before is None or before.active <= kept[-1].base_offset)
                if not (lacks_newest and may_pass(e)):
                    raise
                self._list_is_due = True
                _logger.warning("%s could not be replaced: %s", self._directory / SEGMENT_LIST_NAME, e)
        if self._stray:
            stray = self._directory / STRAY_NAME
            tools.files.make_directory(stray)
            for segment in self._stray:
                moved = segment.move_aside(stray)
                _logger.warning("%s no longer belongs to the log: moved to %s", segment.path, moved)
            # The new name first: a file under neither name would be lost.
            tools.files.sync_directory(stray)
            tools.files.sync_directory(self._directory)
