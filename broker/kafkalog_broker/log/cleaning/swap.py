"""Replaces segments by a cleaned file atomically, even if a crash interrupts it.

::

    <base>-<end>.cleaned     being written; a start removes it
    <base>-<end>.txnindex    the remaining aborted transactions, written before the decision
    <base>-<end>.swap        decided, once the directory is synced: a start completes it

Then the segment list is replaced, the old files are removed, and ``.swap`` gets the first segment's name.
Readers of the old segments keep their files open. What a full disk stops is ended later, before the log's
segments change again; until then ``.swap`` is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from kafkalog_broker.disk.filesystem import DirectoryEntry, FileSystem, OpenFile, replace_file
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, AbortedTransaction, aborted_bytes
from kafkalog_broker.log.cleaning.run import CLEANED_SUFFIX
from kafkalog_broker.log.family import LogTools
from kafkalog_broker.log.segment import Segment, segment_name
from kafkalog_broker.log.segment_list import FullSegment, SegmentList

SWAP_SUFFIX = ".swap"

_NAME = re.compile(r"([0-9]{11,})-([0-9]{11,})(\.[a-z]+)")


def swap_path(directory: Path, base_offset: int, end_offset: int, suffix: str = SWAP_SUFFIX) -> Path:
    return directory / f"{base_offset:011d}-{end_offset:011d}{suffix}"


class Swap:
    """*Not thread-safe: guarded by the log's ``_maintenance``.* A cleaned file replacing segments."""

    def __init__(
        self,
        old: Sequence[Segment],
        new: Segment,
        cleaned: Path,
        aborted: Sequence[AbortedTransaction],
        tools: LogTools,
        sync_list: Callable[[], object],
    ) -> None:
        """``new`` has the name of the first of ``old``; its data is in the synced file ``cleaned``."""
        self._old = old
        self._new = new
        self._cleaned = cleaned
        self._aborted = aborted
        self._files, self._pool = tools.files, tools.pool
        directory, base_offset, end_offset = new.path.parent, new.base_offset, new.next_offset
        self._directory = directory
        self._swap = swap_path(directory, base_offset, end_offset)
        self._index = swap_path(directory, base_offset, end_offset, ABORTED_SUFFIX)
        self._sync_list = sync_list
        self._has_index = self._published = False
        self._held: OpenFile | None = None

    def begin(self, publish: Callable[[], object]) -> None:
        """Decide the swap; ``publish`` replaces the segments and their list. Then call `end`, even after an
        error: `CorruptMessage`, `OSError`.
        """
        self._decide()
        publish()
        self._published = True

    def end(self) -> None:
        """Finish the swap, or undo it if `begin` failed. Raises `OSError`: call it again."""
        if self._published:
            self._sync_list()
            self._finish()
        else:
            self._undo()

    def abandon(self) -> None:
        """Release its file: the topic is deleted."""
        self._pool.forget(self._swap)
        self._release()

    def _decide(self) -> None:
        self._new.place(self._cleaned)
        self._new.build_index()
        for segment in self._old:
            segment.detach()
            self._has_index = self._has_index or bool(segment.aborted.rows())
        if self._has_index:  # even without rows: it replaces the old one
            replace_file(self._files, self._index, aborted_bytes(self._aborted), durable=True)
        self._files.rename(self._cleaned, self._swap)
        self._new.place(self._swap)
        self._held = self._pool.acquire(self._swap)
        self._files.sync_directory(self._directory)

    def _undo(self) -> None:
        for path in (self._swap, self._cleaned, self._index):
            with suppress(FileNotFoundError):
                self._files.remove(path)
        self._release()
        self._files.sync_directory(self._directory)

    def _finish(self) -> None:
        first = self._old[0]
        for segment in self._old:
            names = segment.index_files()
            if segment is not first:
                names = (*names, segment.path, segment.aborted.path)
            for path in names:
                self._pool.forget(path)
                with suppress(FileNotFoundError):
                    self._files.remove(path)
        # Sync before renaming: the new file must not be paired with an old index.
        self._files.sync_directory(self._directory)
        if self._held is not None:
            if self._has_index:
                with suppress(FileNotFoundError):  # an attempt that failed later
                    self._files.rename(self._index, first.aborted.path)
            self._files.rename(self._swap, self._new.path)
            self._pool.forget(self._new.path)
            self._new.place(self._new.path)
            self._release()
        self._files.sync_directory(self._directory)
        self._new.keep_index()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._pool.release(held)


class Decided(NamedTuple):
    """A decided swap that a crash interrupted: offsets ``[base_offset, end_offset)`` and its file."""

    base_offset: int
    end_offset: int
    file: DirectoryEntry


def decided_in(entries: Sequence[DirectoryEntry]) -> list[Decided]:
    found = []
    for entry in entries:
        if not entry.name.endswith(SWAP_SUFFIX) or entry.is_directory:
            continue
        if (match := _NAME.fullmatch(entry.name)) is not None:
            found.append(Decided(int(match[1]), int(match[2]), entry))
    return sorted(found)


def leftovers_in(entries: Sequence[DirectoryEntry]) -> list[str]:
    wanted = {(swap.base_offset, swap.end_offset) for swap in decided_in(entries)}
    found = []
    for entry in entries:
        if not entry.name.endswith((CLEANED_SUFFIX, ABORTED_SUFFIX)):
            continue
        match = _NAME.fullmatch(entry.name)
        if match is not None and (match[3] == CLEANED_SUFFIX or (int(match[1]), int(match[2])) not in wanted):
            found.append(entry.name)
    return found


def with_decided(listed: SegmentList, swaps: Sequence[Decided]) -> SegmentList:
    for swap in swaps:
        rows = [row for row in listed.full if not swap.base_offset <= row.base_offset < swap.end_offset]
        rows.append(FullSegment(swap.base_offset, swap.end_offset, swap.file.size))
        listed = replace(
            listed, full=tuple(sorted(rows)), cleaned_offset=max(listed.cleaned_offset, swap.end_offset)
        )
    return listed


def finish_decided(
    files: FileSystem, directory: Path, swap: Decided, found: Sequence[tuple[int, DirectoryEntry]]
) -> list[tuple[int, DirectoryEntry]]:
    kept: list[tuple[int, DirectoryEntry]] = []
    target = directory / segment_name(swap.base_offset)
    for base_offset, entry in found:
        path = directory / entry.name
        if base_offset == swap.base_offset:
            target = path
        elif not swap.base_offset < base_offset < swap.end_offset:
            kept.append((base_offset, entry))
            continue
        else:
            for gone in (path.with_suffix(ABORTED_SUFFIX), path):
                with suppress(FileNotFoundError):
                    files.remove(gone)
        for suffix in (".index", ".timeindex"):
            with suppress(FileNotFoundError):
                files.remove(path.with_suffix(suffix))
    files.sync_directory(directory)
    with suppress(FileNotFoundError):
        index = swap_path(directory, swap.base_offset, swap.end_offset, ABORTED_SUFFIX)
        files.rename(index, target.with_suffix(ABORTED_SUFFIX))
    files.rename(directory / swap.file.name, target)
    files.sync_directory(directory)
    return sorted([*kept, (swap.base_offset, swap.file._replace(name=target.name))])
