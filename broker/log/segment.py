"""One file of a log with what is needed to find one's way in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.log.file_slice import FileSlice
from broker.log.filesystem import FileSystem, write_all
from broker.log.offset_scheme import OffsetScheme
from broker.log.open_files import OpenFiles
from broker.log.recovery import Survivors
from broker.log.walk import CHUNK_BYTES, SCAN_BYTES, moved, read_frame, walk_frames
from pyspark_kafkalog.formats.base import Frame, MessageFormat
from pyspark_kafkalog.types import NO_TIMESTAMP, Record

_logger = logging.getLogger(__name__)

SUFFIX = ".kafka"
DELETED_SUFFIX = ".deleted"

MAX_DECOMPRESSED_BYTES = 128 << 20
"""One batch, when its records must be seen to answer for a timestamp."""


def segment_name(base_offset: int) -> str:
    """The file name of the segment whose first offset this is; eleven digits at least."""
    return f"{base_offset:011d}{SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """The number in a segment's file name, however wide; None when it is no segment's."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


class Segment:
    """Frames ``[base_offset, next_offset)`` in ``size`` bytes of one file.

    *Thread-safe for reading.* `append`, `truncate` and `finish` belong to the holder of the log's lock.
    ``size`` is published last, so a reader never sees half an append. ``_load_lock`` guards ``_loaded``:
    the index is read, or rebuilt, when it is first needed.
    """

    def __init__(
        self, path: Path, base_offset: int, scheme: OffsetScheme, fmt: MessageFormat,
        files: FileSystem, pool: OpenFiles, *, size: int, next_offset: int, growing: bool, loaded: bool,
        modified_ms: int,
    ) -> None:  # fmt: skip
        self.path = path
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size = size
        self.modified_ms = modified_ms
        self.growing = growing
        self.deleted = False
        self._scheme = scheme
        self._format = fmt
        self._files = files
        self._pool = pool
        self._loaded = loaded
        self._load_lock = threading.Lock()
        self._first_timestamp: int | None = None

    def __repr__(self) -> str:
        return f"Segment({self.path.name}, {self.size} bytes, to offset {self.next_offset})"

    @property
    def largest(self) -> tuple[int, int]:
        """Largest timestamp in ms (`NO_TIMESTAMP` without any) and the first offset of its frame."""
        return self._index().largest

    @property
    def age_timestamp(self) -> int:
        """The time in ms that retention goes by: the largest record's, else the file's."""
        timestamp = self.largest[0]
        return timestamp if timestamp != NO_TIMESTAMP else self.modified_ms

    def first_timestamp(self) -> int:
        """Largest timestamp of the first frame, as Kafka's rule for rolling wants it."""
        if self._first_timestamp is None:
            first = next(self.frames(0), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    def has_room(self, size_bytes: int, last_offset: int, index_bytes: int) -> bool:
        """Whether the indexes could still find what is appended."""
        return self._index().has_room(self.size + size_bytes, last_offset, index_bytes)

    def append(self, data: memoryview, frames: list[Frame], now_ms: int) -> None:
        """Write whole frames behind the last one, where their positions say.

        Raises:
            OSError: the disk refused. The file may be longer than ``size`` then: `cut_back`.
        """
        scheme = self._index()
        position = self.size
        held = self._pool.acquire(self.path, create=True)
        try:
            write_all(held.file, position, data)
        finally:
            self._pool.release(held)
        for frame in frames:
            scheme.on_append(frame)
        if not position:
            self._first_timestamp = frames[0].max_timestamp
        self.modified_ms = now_ms
        self.next_offset = frames[-1].next_offset
        self.size = position + len(data)

    def cut_back(self) -> None:
        """Remove what a failed append left behind the last whole frame. Raises `OSError`."""
        held = self._pool.acquire(self.path)
        try:
            held.file.truncate(self.size)
        finally:
            self._pool.release(held)

    def slice(self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
        """Whole frames from the one with ``offset`` on, in at most ``max_bytes``.

        The first may be larger if ``at_least_one``; nothing at or beyond ``end_offset`` is given. None
        when this segment holds nothing from ``offset`` on: its last frames were compacted away.

        Raises:
            CorruptMessage: the file is not what it was when it was written.
            OSError: the disk refused; `FileNotFoundError` once the segment is deleted.
        """
        scheme = self._index()
        size = self.size
        held = self._pool.acquire(self.path)
        try:
            walk = walk_frames(held.file, self._format, scheme.start_for_offset(offset), size, 0)
            first = next((frame for frame in walk if frame.last_offset >= offset), None)
            if first is None:
                self._pool.release(held)
                return None
            if first.last_offset >= end_offset:
                end = first.position
            elif first.size > max_bytes:
                end = first.end if at_least_one else first.position
            else:
                end = self._end_within(first, end_offset, max_bytes, size)
        except BaseException:
            self._pool.release(held)
            raise
        return FileSlice(self._pool, held, first.position, end - first.position)

    def frames(
        self, start: int, end: int | None = None, *, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[Frame]:
        """The frames from byte ``start`` on, where one must begin. Raises as `slice`."""
        held = self._pool.acquire(self.path)
        try:
            yield from walk_frames(
                held.file, self._format, start, self.size if end is None else end, self.base_offset,
                chunk_bytes=chunk_bytes,
            )  # fmt: skip
        finally:
            self._pool.release(held)

    def heads(self, offset: int, head_bytes: int) -> Iterator[tuple[Frame, bytes]]:
        """The frames from the one with ``offset`` on, each with its first ``head_bytes``.
        Raises as `slice`.
        """
        held = self._pool.acquire(self.path)
        try:
            for frame in self.frames(self._index().start_for_offset(offset), chunk_bytes=SCAN_BYTES):
                if frame.last_offset >= offset:
                    yield frame, held.file.read_at(frame.position, head_bytes)
        finally:
            self._pool.release(held)

    def first_at_or_after(self, timestamp: int, end_offset: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record with a time of ``timestamp`` or later. Raises as `slice`,
        and `MessageTooLarge` when a batch cannot be opened within `MAX_DECOMPRESSED_BYTES`.
        """
        for frame in self.frames(self._index().start_for_timestamp(timestamp)):
            if frame.first_offset >= end_offset:
                return None
            if frame.max_timestamp < timestamp:
                continue
            for record in self._records(frame):
                if record.timestamp >= timestamp:
                    return (record.timestamp, record.offset) if record.offset < end_offset else None
        return None

    def newest_record(self) -> tuple[int, int]:
        """Largest timestamp of the segment and the offset of the first record that has it. Raises as
        `first_at_or_after`.
        """
        timestamp, offset = self.largest
        for frame in self.frames(self._index().start_for_offset(offset)):
            if frame.last_offset >= offset:
                for record in self._records(frame):
                    if record.timestamp == timestamp:
                        return timestamp, record.offset
                break
        return timestamp, offset  # the header promised a time that none of its records has

    def learn(self, check: Callable[[Callable[[Frame], None]], Survivors]) -> Survivors:
        """Build the indexes anew from the frames that ``check`` finds valid, and end behind the last one."""
        self._scheme.clear()
        found = check(self._scheme.on_append)
        self._loaded = True
        self.size, self.next_offset = found.size, found.next_offset
        return found

    def save_index(self, *, growing: bool) -> None:
        """Save the indexes; unless ``growing``, the segment takes no more.

        A disk that refuses costs a rebuild when they are needed next, and nothing else: it is only logged.
        """
        self.growing = growing
        if self._loaded:
            try:
                self._scheme.save(self.size, growing=growing)
            except OSError as e:
                _logger.warning("the index of %s could not be saved: %s", self.path, e)

    def sync(self) -> None:
        """Make what is in the file durable. Raises `OSError`."""
        held = self._pool.acquire(self.path)
        try:
            held.file.sync()
        finally:
            self._pool.release(held)

    def rename_deleted(self) -> list[Path]:
        """Take the names of its files away; those who read it already go on. Returns what is to be removed.

        Raises:
            OSError: the disk refused.
        """
        self.deleted = True
        gone = []
        for path in (self.path, *self._scheme.files()):
            target = path.with_name(path.name + DELETED_SUFFIX)
            try:
                self._files.rename(path, target)
            except FileNotFoundError:
                continue  # an index that was never saved
            gone.append(target)
            self._pool.forget(path)
        return gone

    def forget_files(self) -> None:
        """Close its descriptors: the directory is about to be renamed or removed."""
        self.deleted = True
        for path in (self.path, *self._scheme.files()):
            self._pool.forget(path)

    def _end_within(self, first: Frame, end_offset: int, max_bytes: int, size: int) -> int:
        """Where the last frame ends that is whole within ``max_bytes`` and before ``end_offset``."""
        limit = first.position + max_bytes
        if limit >= size and end_offset >= self.next_offset:
            return size
        scheme = self._index()
        start = scheme.start_for_position(min(limit, size))
        if end_offset < self.next_offset:
            start = min(start, scheme.start_for_offset(end_offset))
        end = max(first.position, start)
        for frame in self.frames(end, size):
            if frame.end > limit or frame.last_offset >= end_offset:
                break
            end = frame.end
        return end

    def _records(self, frame: Frame) -> Iterator[Record]:
        held = self._pool.acquire(self.path)
        try:
            buf = read_frame(held.file, frame)
        finally:
            self._pool.release(held)
        return self._format.records(buf, moved(frame, 0), max_bytes=MAX_DECOMPRESSED_BYTES)

    def _index(self) -> OffsetScheme:
        if not self._loaded:
            with self._load_lock:
                if not self._loaded:
                    if not self._scheme.load(self.size, growing=self.growing):
                        self._scheme.clear()
                        for frame in self.frames(0, chunk_bytes=SCAN_BYTES):
                            self._scheme.on_append(frame)
                        self._loaded = True
                        if not self.growing:
                            self.save_index(growing=False)
                    self._loaded = True
        return self._scheme
