"""One segment file of a log, with its indexes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import File, OpenFile, copy_bytes, write_all
from kafkalog_broker.log import walk
from kafkalog_broker.log.aborted_transactions import AbortedIndex
from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES, CheckedBatch, LogTools, Producers
from kafkalog_broker.log.file_slice import FileSlice, KnownFormats
from kafkalog_broker.log.offset_scheme import OffsetScheme, ReadWindow, Rises, rises_of
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES
from pyspark_kafkalog.types import NO_TIMESTAMP

_logger = logging.getLogger(__name__)

_OFFSET_COUNT, _MAX_TIMESTAMP = attrgetter("offset_count"), attrgetter("max_timestamp")

SUFFIX = ".kafka"
DELETED_SUFFIX = ".deleted"


def segment_name(base_offset: int) -> str:
    return f"{base_offset:011d}{SUFFIX}"


def base_offset_of(name: str) -> int | None:
    stem = name.removesuffix(SUFFIX)
    if stem == name or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


class Segment:
    """Frames ``[base_offset, next_offset)`` in one file. *Thread-safe for reading.* Changes need the log's
    lock; ``size`` is published last. ``_load_lock`` guards ``_scheme``, the indexes, made on first use.
    """

    def __init__(
        self, path: Path, base_offset: int, tools: LogTools, config: LogConfig,
        *, size: int, next_offset: int, growing: bool = True, modified_ms: int | None = None,
        gaps_allowed: bool = False, has_aborted: bool = True,
    ) -> None:  # fmt: skip
        """``gaps_allowed``: a cleaner may have removed records, so offsets need only rise. ``has_aborted``:
        there may be a file of aborted transactions.
        """
        self.path = path
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size = size
        self._begun_ms = tools.clock.time_ms()
        self.modified_ms = self._begun_ms if modified_ms is None else modified_ms
        self.growing = growing
        self.gaps_allowed = gaps_allowed
        self.deleted = False
        self._formats = KnownFormats(size)
        self._tools = tools
        self._pool = tools.pool
        self._format = tools.family.format
        self._interval_bytes = config.index_interval_bytes
        self._scheme = self._make_scheme() if size == 0 else None
        self.aborted = AbortedIndex(path, tools.files, is_new=size == 0 or not has_aborted)
        self._saved_size = -1  # segment size when its indexes were last saved or loaded
        self._load_lock = threading.Lock()
        self._first_timestamp: int | None = None
        self._largest: tuple[int, int] | None = None
        self._has_rest = False
        self._place = path
        self._kept: _KeptOpen | None = None

    def __repr__(self) -> str:
        return f"Segment({self.path.name}, {self.size} bytes, to offset {self.next_offset})"

    @property
    def largest(self) -> tuple[int, int]:
        """Largest timestamp in ms (`NO_TIMESTAMP` if none) and its frame's first offset."""
        if self.growing:
            return self._index().largest
        if self._largest is None:
            self._largest = self._index().largest
        return self._largest

    @property
    def age_timestamp(self) -> int:
        """Time in ms used by retention: the largest timestamp, else the file's."""
        try:
            timestamp = self.largest[0]
        except CorruptMessage as e:
            _logger.warning("%s: its age is that of the file: %s", self.path, e)
            timestamp = NO_TIMESTAMP
        return timestamp if timestamp != NO_TIMESTAMP else self.modified_ms

    def first_timestamp(self) -> int:
        """Largest timestamp of the first frame, used by Kafka's rolling rule."""
        if self._first_timestamp is None:
            # A damaged offset must not stop appends, so order is not checked here.
            first = next(self._frames(0, self.size, walk.CHUNK_BYTES), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    def append(self, data: memoryview, batches: Sequence[CheckedBatch], now_ms: int) -> None:
        """Write whole batches, numbered from ``next_offset``; all or nothing. Raises `OSError`."""
        scheme = self._index()
        position, offset = self.size, self.next_offset
        if self._has_rest:
            self.cut_back()
        held = self._acquire()
        try:
            write_all(held.file, position, data)
        except OSError:
            # Recovery would find a partial append before the next one.
            self._has_rest = True
            self.cut_back()
            raise
        finally:
            self._pool.release(held)
        if not position:
            self._first_timestamp, self._begun_ms = batches[0].max_timestamp, now_ms
        # A v0 or v1 set may have 262,144 messages and others wait for the lock: keep this loop minimal.
        on_append, formats, magic = scheme.on_append, self._formats, -1
        for size, _, offset_count, max_timestamp, _, batch_magic, named_delta, _, _ in batches:
            on_append(position, size, offset + named_delta, max_timestamp)
            if batch_magic != magic:
                magic = batch_magic
                if formats.newest is not None and magic > formats.newest:
                    formats.appended(magic)
            position += size
            offset += offset_count
        self.modified_ms = now_ms
        self.next_offset = offset
        self.size = position

    def must_roll(
        self, batches: Sequence[CheckedBatch], size_bytes: int, config: LogConfig, now_ms: int
    ) -> bool:
        """Whether ``batches`` need a new segment because this one is full (file or index) or too old: as in
        Kafka by the time from its first record to the newest in ``batches``, else since its first append.
        """
        if not self.size:
            return False
        if self._tools.family.scheme.is_full(self.size, size_bytes, config.segment_bytes):
            return True
        last_offset = self.next_offset - 1 + sum(map(_OFFSET_COUNT, batches))
        newest = max(map(_MAX_TIMESTAMP, batches))
        if not self._index().has_room(self.size + size_bytes, last_offset, config.segment_index_bytes):
            return True
        first = self.first_timestamp()
        age_ms = newest - first if first >= 0 and newest >= 0 else now_ms - self._begun_ms
        return age_ms > config.roll_ms

    def cut_back(self) -> None:
        """Cut off the rest of a failed append, if there is one. Raises `OSError`: call it again."""
        if self._has_rest:
            with self._acquire() as file:
                file.truncate(self.size)
            self._has_rest = False

    def slice(self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
        """The file from ``offset`` on, cut by the offset scheme; None if later frames were compacted away.
        Raises `CorruptMessage`; `OSError`, of it `FileNotFoundError` once the segment is deleted.
        """
        scheme = self._index()
        size = self.size  # read before next_offset, which is published first
        wanted = ReadWindow(
            offset, end_offset, max_bytes, at_least_one, size, self.next_offset, self.gaps_allowed
        )
        held = self._acquire()

        def frames(start: int, end: int, first: int) -> Iterator[Frame]:
            walked = walk.walk_frames(held.file, self._format, start, end, self.base_offset + start)
            return self._in_order(walked, first, wanted=offset)

        try:
            found = scheme.cut(wanted, frames)
        except BaseException:
            self._pool.release(held)
            raise
        if found is None:
            self._pool.release(held)
            return None
        start, end = found
        if start == end:
            self._pool.release(held)
            return FileSlice(None, 0, 0)  # not NOTHING: the log may set its ``aborted``
        return FileSlice(held, start, end - start, self._formats)

    def offset_after(self, position: int) -> int:
        """An offset above all records before file position ``position``. Raises as `slice`."""
        next_offset = self.next_offset
        found = self._index().offset_from(position)
        return next_offset if found is None else min(found, next_offset)

    def frames(
        self, start: int, end: int | None = None, *, chunk_bytes: int = walk.CHUNK_BYTES
    ) -> Iterator[Frame]:
        """Frames from byte ``start``, which must be a frame's beginning. Raises as `slice`."""
        end = self.size if end is None else end  # read before next_offset, which is published first
        return self._in_order(self._frames(start, end, chunk_bytes))

    def end_in_file(self) -> int:
        """The end offset as the file's last frames give it. Raises as `slice`."""
        start = self._index().start_of_end(self.size)
        end_offset = self.base_offset + start
        for frame in self.frames(start):
            end_offset = frame.next_offset
        return end_offset

    def heads(self, offset: int, head_bytes: int) -> Iterator[tuple[Frame, bytes]]:
        """Frames from the one holding ``offset``, each with its first ``head_bytes``. Raises as `slice`."""
        data, origin = b"", 0
        with self._acquire() as file:
            for frame in self.frames(self._index().start_for_offset(offset), chunk_bytes=walk.SCAN_BYTES):
                if frame.last_offset >= offset:
                    inside = frame.position - origin
                    if inside + head_bytes > len(data):
                        # Read several heads at once: v0 and v1 messages are short, a system call each is not.
                        data = file.read_at(frame.position, walk.CHUNK_BYTES)
                        origin, inside = frame.position, 0
                    yield frame, data[inside : inside + head_bytes]

    def replay(self, producers: Producers, offset: int, now_ms: int) -> None:
        """Tell ``producers`` what is here from ``offset`` on, and note which transactions were aborted."""
        if self.next_offset <= offset:
            if self.growing:  # may have been cut since its rows were written
                self.aborted.replace(offset, ())
            return
        try:
            aborted = producers.replay(self.heads(offset, MARKER_HEAD_BYTES), now_ms)
        except CorruptMessage as e:
            # The log stays usable; at worst a retried batch is appended twice.
            _logger.error("%s: producers after the damage are not known: %s", self.path, e)
        else:
            self.aborted.replace(offset, aborted)

    def first_at_or_after(
        self, timestamp: int, end_offset: int, start_offset: int = 0
    ) -> tuple[int, int] | None:
        """Timestamp and offset of the first record at or after this time, between these offsets."""
        for frame in self.frames(self._index().start_for_timestamp(timestamp)):
            if frame.first_offset >= end_offset:
                return None
            if frame.max_timestamp >= timestamp and frame.last_offset >= start_offset:
                found = self._rises(frame, start_offset).first_at_or_after(timestamp)
                if found is not None:
                    return found if found[1] < end_offset else None
        return None

    def newest_record(self) -> tuple[int, int]:
        timestamp, offset = self.largest
        for frame in self.frames(self._index().start_for_offset(offset)):
            if frame.last_offset >= offset:
                found = self._rises(frame).first_at_or_after(timestamp)
                if found is not None and found[0] == timestamp:
                    return found
                break
        return timestamp, offset  # the header's time matches none of its records

    def newest_record_from(self, start_offset: int) -> tuple[int, int] | None:
        """As `newest_record`, from ``start_offset`` on, by all headers; None if no record has a time."""
        newest: tuple[int, int] | None = None
        for frame in self.frames(self._index().start_for_offset(start_offset)):
            above = NO_TIMESTAMP if newest is None else newest[0]
            if frame.last_offset >= start_offset and frame.max_timestamp > above:
                rises = self._rises(frame, start_offset)
                found = rises.newest()
                newest = found if found is not None and found[0] > above else newest
        return newest

    def check(self, *, durable_offset: int, last: bool) -> walk.Survivors:
        """Check all after a crash, rebuild the indexes, and truncate at damage above ``durable_offset``."""
        scheme = self._make_scheme()
        with self._acquire() as file:
            found = walk.SegmentCheck(
                file, self._format, self.size, self.base_offset, _learner(scheme), self.gaps_allowed,
                end_offset=walk.LAST_OFFSET if last else self.next_offset,
                durable_offset=durable_offset, scan=self._tools.family.scan,
            ).run()  # fmt: skip
            if found.fault is not None and found.next_offset >= durable_offset:
                file.truncate(found.size)
        self._scheme, self._saved_size = scheme, -1
        self.size, self.next_offset = found.size, found.next_offset
        return found

    def stop_growing(self) -> None:
        self.growing = False
        self.keep_index()

    def save_index(self) -> None:
        if self._scheme is not None and self._saved_size != self.size:
            self._save(self._scheme)

    def unload(self) -> None:
        """Drop the indexes from memory; threads using them keep their reference."""
        if not self.growing and self._kept is None:
            self._scheme = None
            self.aborted.unload()

    def sync(self) -> None:
        with self._acquire() as file:
            file.sync()

    def copy_to(self, target: File, position: int, size: int, progress: Callable[[int], object]) -> None:
        with self._acquire() as file:
            copy_bytes(file, target, size, progress, position=position)

    def rename_deleted(self) -> Iterator[Path]:
        """Rename its files as deleted; readers continue. Yields the files to remove. Raises `OSError`."""
        self.deleted = True
        self._tools.schemes.discard(self)
        for path in self._files():
            target = path.with_name(path.name + DELETED_SUFFIX)
            try:
                self._tools.files.rename(path, target)
            except FileNotFoundError:
                continue  # an index that was never saved
            self._pool.forget(path)
            yield target

    def move_aside(self, directory: Path) -> Path:
        """Move its files into ``directory``, with a suffix if the name is taken; returns the new path."""
        taken = {entry.name for entry in self._tools.files.scan(directory)}
        suffix, number = "", 0
        while self.path.name + suffix in taken:
            number += 1
            suffix = f".{number}"
        self.forget_files()
        for path in self._files():
            try:
                self._tools.files.rename(path, directory / (path.name + suffix))
            except FileNotFoundError:
                continue  # an index that was never saved
        return directory / (self.path.name + suffix)

    def detach(self) -> None:
        """Keep its file and indexes for readers, before another takes its name. Raises as `slice`."""
        self._kept = _KeptOpen(self._acquire())
        self._index()
        self.aborted.rows()
        self._tools.schemes.discard(self)

    def place(self, path: Path) -> None:
        before, self._place = self._place, path
        self._pool.forget(before)

    def build_index(self) -> None:
        self._scheme = self._build_scheme()

    def keep_index(self) -> None:
        self.save_index()
        if self._scheme is not None:
            self._tools.schemes.add(self, self._scheme.memory_bytes)

    def index_files(self) -> tuple[Path, ...]:
        return self._make_scheme().files()

    def forget_files(self) -> None:
        """Close its descriptors, before the directory is renamed or removed."""
        self.deleted = True
        self._tools.schemes.discard(self)
        for path in self._files():
            self._pool.forget(path)

    def _acquire(self) -> OpenFile:
        """A lease of its file, even if the file is being renamed."""
        while (kept := self._kept) is None:
            place = self._place
            try:
                held = self._pool.acquire(place)
            except FileNotFoundError:
                if not self._has_moved(place):
                    raise
                continue
            if not self._has_moved(place) and not self.deleted:
                return held
            self._pool.release(held)  # may already be the other file, or one of a topic made again
            if self.deleted:
                raise FileNotFoundError(f"{place} was deleted")
        return self._pool.again(kept.file)

    def _has_moved(self, place: Path) -> bool:
        return self._kept is not None or self._place is not place

    def _files(self) -> tuple[Path, ...]:
        return (self.path, *self._make_scheme().files(), self.aborted.path)

    def _in_order(self, frames: Iterator[Frame], first: int = -1, *, wanted: int = 0) -> Iterator[Frame]:
        return walk.in_order(
            frames, self.base_offset if first < 0 else first, self.next_offset,
            path=self.path, gaps_allowed=self.gaps_allowed, exact=first >= 0, wanted=wanted,
        )  # fmt: skip

    def _frames(self, start: int, end: int, chunk_bytes: int) -> Iterator[Frame]:
        with self._acquire() as file:
            yield from walk.walk_frames(
                file, self._format, start, end, self.base_offset + start, chunk_bytes=chunk_bytes
            )

    def _rises(self, frame: Frame, start_offset: int = 0) -> Rises:
        low = start_offset if frame.first_offset < start_offset or not frame.first_is_known else 0
        batch = (self, frame.position, low)
        found = self._tools.times.get(batch)
        if found is None:
            with self._acquire() as file:
                buf = walk.read_frame(file, frame)
            times = self._format.times(buf, walk.moved(frame, 0), max_bytes=MAX_DECOMPRESSED_BYTES)
            found = rises_of(each for each in times if each[1] >= low)
            self._tools.times.keep(batch, found)
        return found

    def _index(self) -> OffsetScheme:
        scheme = self._scheme
        if scheme is None:
            with self._load_lock:
                scheme = self._scheme
                if scheme is None:
                    scheme = self._scheme = self._load_scheme()
                    if not self.growing:
                        self._tools.schemes.add(self, scheme.memory_bytes)
        return scheme

    def _make_scheme(self) -> OffsetScheme:
        return self._tools.family.scheme(self.base_offset, self.path, self._interval_bytes, self._pool)

    def _load_scheme(self) -> OffsetScheme:
        scheme = self._make_scheme()
        if scheme.load(self.size):
            self._saved_size = self.size
            return scheme
        scheme = self._build_scheme()
        if not self.growing:
            self._save(scheme)
        return scheme

    def _save(self, scheme: OffsetScheme) -> None:
        try:
            scheme.save(self.size)
        except OSError as e:
            _logger.warning("the index of %s could not be saved: %s", self.path, e)
        else:
            self._saved_size = self.size

    def _build_scheme(self) -> OffsetScheme:
        scheme = self._make_scheme()
        learn = _learner(scheme)
        learned = expected = self.base_offset
        for frame in self._frames(0, self.size, walk.SCAN_BYTES):
            # An entry with a damaged offset gets no row; a read of it walks there and fails.
            gap = frame.first_offset - expected
            follows = not gap or self.gaps_allowed or (gap > 0 and not walk.is_lost(frame, gap))
            if follows and learned <= frame.first_offset and frame.last_offset < self.next_offset:
                learn(frame)
                learned = frame.next_offset
            expected = frame.next_offset
        return scheme


def newest_record(segments: Sequence[Segment], start_offset: int) -> tuple[int, int] | None:
    """`Segment.newest_record` of all; None if no record from ``start_offset`` on has a time."""
    rest, found = segments, None
    if start_offset > segments[0].base_offset:
        # The index's largest time may belong to a deleted record.
        rest, found = segments[1:], segments[0].newest_record_from(start_offset)
    newest = max(rest, key=lambda segment: segment.largest[0], default=None)
    if newest is None or newest.largest[0] <= (NO_TIMESTAMP if found is None else found[0]):
        return found
    return newest.newest_record()


@dataclass(slots=True, eq=False)
class _KeptOpen:
    """*Thread-safe: immutable.* A lease of a file, released when garbage-collected."""

    file: OpenFile

    def __del__(self) -> None:
        self.file.pool.release(self.file)


def _learner(scheme: OffsetScheme) -> Callable[[Frame], None]:
    return lambda frame: scheme.on_append(frame.position, frame.size, frame.first_offset, frame.max_timestamp)
