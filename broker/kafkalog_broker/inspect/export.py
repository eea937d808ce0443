"""Copies logs under Apache Kafka's names, with the files that Kafka's tools and brokers need.

The copy is built in ``.<name>.exporting`` and renamed once durable. Segments are copied byte for byte.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec

from kafkalog_broker.disk.filesystem import File, FileSystem, copy_bytes, remove_tree, write_all
from kafkalog_broker.disk.process_lock import hold_directory
from kafkalog_broker.inspect.inspection import (
    INSPECTIONS,
    FoundTransactions,
    OpenSegment,
    PartitionPlace,
    SegmentPlace,
    segment_list_in,
    segments_in,
)
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, aborted_bytes
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.log.offset_scheme import MAX_RELATIVE
from kafkalog_broker.log.scan import FoundBatch
from kafkalog_broker.log.walk import MESSAGES_PER_BYTE, CandidateEntry, Damage
from kafkalog_broker.logs.topic_store import PARTITION_METADATA
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, StorageError
from pyspark_kafkalog.formats.batch import BatchHeader
from pyspark_kafkalog.types import NO_TIMESTAMP, TopicPartition, encode_id

_MOST_TRIES = 10
"""Attempts to copy a running broker's partition, whose segments retention may remove."""


class Source(msgspec.Struct, frozen=True):
    """A partition to export, without a torn end from offset ``torn_from`` on; None: nothing may be torn."""

    place: PartitionPlace
    topic_id: UUID
    gaps_allowed: bool
    torn_from: int | None


class Exported(msgspec.Struct, frozen=True):
    """Result for a partition; ``left_bytes`` of a torn tail were not copied."""

    name: str
    start_offset: int
    end_offset: int
    segment_count: int
    size_bytes: int
    left_bytes: int

    def __str__(self) -> str:
        if self.end_offset == self.start_offset:
            return f"{self.name}: empty at offset {self.end_offset}"
        offsets = f"offsets {self.start_offset} to {self.end_offset - 1}"
        return f"{self.name}: {offsets}, {self.segment_count} segments, {self.size_bytes} bytes"


def export(
    sources: Sequence[Source],
    target: Path,
    *,
    reading: FileSystem,
    writing: FileSystem,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Exported]:
    """Copy ``sources`` to a new directory ``target``; returns the results in their order. All or nothing."""
    target = target.absolute()
    done = []
    with _staging(target, writing) as staging:
        starts: dict[str, int] = {}
        for source in sources:
            done.append(_partition(source, staging, reading, writing, progress, starts))
        if starts:
            _write(writing, staging / START_OFFSETS, checkpoint(starts.items()))
        writing.sync_directory(staging)
        check_target(target)
        # Atomic, over an empty directory too.
        writing.rename(staging, target)
        writing.sync_directory(target.parent)
    return done


def check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InvalidConfig(f"{target} is not a directory; the target must be absent or an empty directory")
    if target.is_dir() and any(target.iterdir()):
        raise InvalidConfig(f"{target} is not empty; the target must be absent or an empty directory")


@contextmanager
def _staging(target: Path, files: FileSystem) -> Iterator[Path]:
    """A locked, empty directory beside ``target``, removed on failure."""
    staging = target.with_name(f".{target.name}.exporting")
    try:
        files.make_directory(staging)
        try:
            held = hold_directory(staging)
        except BlockingIOError:
            raise StorageError(f"another export to {target} is under way") from None
        try:
            check_target(target)
            for entry in files.scan(staging):  # left by a killed export
                path = staging / entry.name
                if entry.is_directory:
                    remove_tree(files, path)
                else:
                    files.remove(path)
            try:
                yield staging
            except BaseException:
                remove_tree(files, staging)
                raise
        finally:
            held.close()
    except OSError as e:
        cause = e.__cause__ if isinstance(e.__cause__, OSError) else e  # of a failed sync
        why = "the disk is full" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "it failed"
        raise StorageError(f"{target}: {why}, and nothing of the export is left: {e}") from e


def _partition(
    source: Source,
    staging: Path,
    reading: FileSystem,
    writing: FileSystem,
    progress: Callable[[int], object],
    starts: dict[str, int],
) -> Exported:
    partition = source.place.partition
    directory = staging / kafka_directory_name(partition)
    for _ in range(_MOST_TRIES):
        copy = _Copy(source, directory, reading, writing, progress)
        try:
            exported = copy.run()
        except _Vanished:
            remove_tree(writing, directory)
            continue
        if copy.starts_within:
            starts[f"{partition.topic} {partition.partition}"] = exported.start_offset
        return exported
    raise StorageError(f"{source.place.path}: its segments are removed faster than they can be copied")


class _Vanished(Exception):
    """The running broker removed a segment."""


@dataclass(slots=True)
class _Copy:
    _source: Source
    _directory: Path
    _reading: FileSystem
    _writing: FileSystem
    _progress: Callable[[int], object]
    _epochs: list[tuple[int, int]] = field(default_factory=list)
    _next_offset: int = 0
    _cleaned_offset: int = 0
    _left_bytes: int = 0
    _transactions: FoundTransactions = field(default_factory=FoundTransactions)
    starts_within: bool = False
    """Whether the log starts inside its first segment, after records were deleted."""

    def run(self) -> Exported:
        place = self._source.place
        # Read before the segments: a running broker may delete records meanwhile.
        listed = segment_list_in(place.path, self._reading)
        segments = segments_in(place.path, self._reading)
        if not segments:
            raise CorruptMessage(f"{place.path}: there is no segment in it")
        self._writing.make_directory(self._directory)
        self._next_offset = segments[0].base_offset
        start = max(self._next_offset, listed.start_offset if listed is not None else 0)
        self.starts_within = start > self._next_offset
        size = 0
        for segment in segments:
            size += self._segment(segment, last=segment is segments[-1])
        self._write(LEADER_EPOCHS, checkpoint(self._epochs))
        self._write(PARTITION_METADATA, partition_metadata(self._source.topic_id))
        self._writing.sync_directory(self._directory)
        return Exported(self._directory.name, start, self._next_offset, len(segments), size, self._left_bytes)

    def _segment(self, segment: SegmentPlace, *, last: bool) -> int:
        base = segment.base_offset
        self._check_follows(base, f"{segment.path}")
        self._next_offset = base
        indexes = KafkaIndexes(base)
        self._transactions.begin_segment()
        try:
            opened = OpenSegment(self._reading, segment, INSPECTIONS[SINCE_08.generation])
        except FileNotFoundError:
            raise _Vanished from None
        with opened:
            size = self._check(segment, opened, indexes, last)
            self._copy(opened.file, kafka_segment_name(base), size)
        offsets, times = indexes.finish()
        self._write(kafka_segment_name(base, ".index"), offsets)
        self._write(kafka_segment_name(base, ".timeindex"), times)
        if self._transactions.aborted:
            self._write(kafka_segment_name(base, ABORTED_SUFFIX), aborted_bytes(self._transactions.aborted))
        return size

    def _check(self, segment: SegmentPlace, opened: OpenSegment, indexes: KafkaIndexes, last: bool) -> int:
        end, fault = 0, ""
        for found in opened.entries():
            if isinstance(found, Damage) or not found.sound:
                fault = fault or f"{segment.path}, byte {found.position}: no sound batch"
                continue
            if fault:
                raise CorruptMessage(f"{fault}, and sound ones follow: verify-log says more")
            where = f"{segment.path}, byte {found.position}"
            most = 1 if found.first_is_known else found.size * MESSAGES_PER_BYTE
            self._check_follows(found.first_offset, where, most)
            if found.last_offset - segment.base_offset > MAX_RELATIVE:
                raise CorruptMessage(f"{where}: offset {found.last_offset} does not fit the segment's index")
            indexes.add(found)
            if isinstance(found, FoundBatch):  # message sets have no leader epoch
                add_epoch(self._epochs, found.header)
            self._transactions.see(found, opened.file)
            self._next_offset, end = found.next_offset, found.end
        torn_from = self._source.torn_from
        if fault and (not last or torn_from is None or self._next_offset < torn_from):
            raise CorruptMessage(f"{fault}: verify-log says more")
        self._left_bytes += opened.size - end
        return end

    def _check_follows(self, offset: int, where: str, most: int = 1) -> None:
        gap = offset - self._next_offset
        if gap < 0 or (gap >= most and not self._may_leave_gap(offset)):
            raise CorruptMessage(f"{where}: offset {offset} where {self._next_offset} should follow")

    def _may_leave_gap(self, offset: int) -> bool:
        """Whether a cleaner may have removed the offsets before ``offset``, perhaps just now."""
        if self._source.gaps_allowed or offset <= self._cleaned_offset:
            return True
        listed = segment_list_in(self._source.place.path, self._reading)
        if listed is not None:
            self._cleaned_offset = listed.cleaned_offset
        return offset <= self._cleaned_offset

    def _copy(self, source: File, name: str, size: int) -> None:
        with closing(self._writing.open(self._directory / name, create=True)) as target:
            try:
                copy_bytes(source, target, size, self._progress)
            except EOFError as e:
                raise CorruptMessage(f"{self._source.place.path}, {name}: {e}") from e
            target.sync()

    def _write(self, name: str, data: bytes) -> None:
        _write(self._writing, self._directory / name, data)


def _write(files: FileSystem, path: Path, data: bytes) -> None:
    with closing(files.open(path, create=True)) as target:
        write_all(target, 0, data)
        target.sync()


LEADER_EPOCHS = "leader-epoch-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"

_INTERVAL_BYTES = 4096
"""Kafka's default ``index.interval.bytes``."""

_OFFSET_ROW = struct.Struct(">ii")
_TIME_ROW = struct.Struct(">qi")


def kafka_directory_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def kafka_segment_name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


def partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_id(topic_id)}\n".encode("ascii")


def checkpoint(rows: Iterable[tuple[object, int]]) -> bytes:
    lines = [f"{key} {offset}\n" for key, offset in rows]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode("ascii")


def add_epoch(rows: list[tuple[int, int]], header: BatchHeader) -> None:
    epoch = header.partition_leader_epoch
    if epoch >= 0 and (not rows or epoch > rows[-1][0]):
        rows.append((epoch, header.base_offset))


class KafkaIndexes:
    """*Not thread-safe.* Builds both indexes of a segment as Kafka does."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets = bytearray()
        self._times = bytearray()
        self._largest = (NO_TIMESTAMP, base_offset)
        self._last_time = NO_TIMESTAMP
        self._bytes_since_row = 0

    def add(self, found: CandidateEntry) -> None:
        """Add the next entry; its offsets must be at most 2**31 - 1 above the segment's base."""
        if found.max_timestamp > self._largest[0] and found.record_count != 0:
            self._largest = (found.max_timestamp, found.last_offset)
        if self._bytes_since_row > _INTERVAL_BYTES:
            self._offsets += _OFFSET_ROW.pack(found.last_offset - self._base_offset, found.position)
            self._add_time()
            self._bytes_since_row = 0
        self._bytes_since_row += found.size

    def finish(self) -> tuple[bytes, bytes]:
        self._add_time()
        return bytes(self._offsets), bytes(self._times)

    def _add_time(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time:
            self._times += _TIME_ROW.pack(timestamp, offset - self._base_offset)
            self._last_time = timestamp
