"""Which part of a log is cleaned; and one cleaning, which reads full segments for the key map and to write
what stays. Source: Kafka 3.9 ``LogCleanerManager``, ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import File, FileSystem, write_all
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.cleaning.cleaned_batches import AbortedRanges, BatchFilter, KeyOffsets
from kafkalog_broker.log.family import NewestBatch
from kafkalog_broker.log.offset_scheme import MAX_RELATIVE
from kafkalog_broker.log.segment import Segment
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch import HEADER_SIZE, MAGIC, read_header, record_block, verify_crc
from pyspark_kafkalog.formats.legacy import messages
from pyspark_kafkalog.formats.message_set import MAX_BATCH_BYTES
from pyspark_kafkalog.types import NO_TIMESTAMP

CLEANED_SUFFIX = ".cleaned"
_CHUNK_BYTES = 1 << 20
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_ENTRY_OVERHEAD, _SMALLEST, _MAGIC_AT, _LAST_DELTA_AT = 12, 26, 16, 23


class Dirt(msgspec.Struct, frozen=True):
    """Segments up to ``end_offset``, clean below ``first_dirty``; ``overdue``: beyond the maximum lag."""

    first_dirty: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > config.min_cleanable_dirty_ratio)


def dirt_of(
    segments: Sequence[Segment], first_dirty: int, stable_offset: int, config: LogConfig, now_ms: int
) -> Dirt:
    """What to clean of full segments, up to an open transaction or ``min.compaction.lag.ms``."""
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    earliest: int | None = None
    lag_ms, most_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    for segment in segments:
        if segment.next_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        if segment.next_offset > stable_offset:
            break
        if lag_ms > 0:
            newest = segment.largest[0]
            if (segment.modified_ms if newest == NO_TIMESTAMP else newest) > now_ms - lag_ms:
                break
        dirty_bytes += segment.size
        end_offset = segment.next_offset
        if earliest is None and segment.size:
            first = segment.first_timestamp()
            earliest = segment.modified_ms if first == NO_TIMESTAMP else first
    overdue = earliest is not None and earliest < now_ms - most_ms
    return Dirt(first_dirty, end_offset, clean_bytes, dirty_bytes, overdue)


def groups_of(sources: Sequence[Segment], segment_bytes: int) -> list[tuple[int, int]]:
    """Index ranges of ``sources`` to merge, each within ``segment_bytes`` and the offsets of one index."""
    groups: list[tuple[int, int]] = []
    first = size = 0
    for number, source in enumerate(sources):
        relative = source.next_offset - 1 - sources[first].base_offset
        if number > first and (size + source.size > segment_bytes or relative > MAX_RELATIVE):
            groups.append((first, number))
            first, size = number, 0
        size += source.size
    if sources:
        groups.append((first, len(sources)))
    return groups


def legacy_horizon_ms(sources: Sequence[Segment], first_dirty: int, delete_retention_ms: int) -> int:
    """v0 and v1 tombstones expire in segments modified up to this time; 0 if none was cleaned."""
    cleaned = [source for source in sources if source.base_offset < first_dirty]
    return cleaned[-1].modified_ms - delete_retention_ms if cleaned else 0


class CleanJob(msgspec.Struct, frozen=True):
    """A cleaning's input: full segments, dirty from ``first_dirty``; ``memory_bytes`` for keys."""

    sources: tuple[Segment, ...]
    first_dirty: int
    memory_bytes: int
    segment_bytes: int
    producers: Mapping[int, NewestBatch]
    aborted: tuple[AbortedTransaction, ...]
    now_ms: int
    delete_retention_ms: int
    legacy_horizon_ms: int


class CleanedFile(NamedTuple):
    """A synced file for segments ``[first, after)``; with all in place the log is clean to ``end_offset``."""

    first: int
    after: int
    path: Path
    size: int
    aborted: tuple[AbortedTransaction, ...]
    end_offset: int


Pace = Callable[[int], object]
"""Called with each number of bytes read or written; may wait, or raise to stop the cleaning."""


def clean(job: CleanJob, files: FileSystem, pace: Pace) -> Generator[CleanedFile, None, None]:
    """Write what stays of the job's segments; `FileNotFoundError` if the log changed."""
    aborted = AbortedRanges(job.aborted)
    newest = KeyOffsets(job.memory_bytes, job.first_dirty)
    _fill(newest, job, files, aborted, pace)
    rules = BatchFilter(newest, job.producers, aborted, job.now_ms, job.delete_retention_ms)
    sources = [source for source in job.sources if source.base_offset < newest.end_offset]
    for first, after in groups_of(sources, job.segment_bytes):
        yield _clean_group(job, first, after, files, rules, pace)


def _fill(newest: KeyOffsets, job: CleanJob, files: FileSystem, aborted: AbortedRanges, pace: Pace) -> None:
    rules = BatchFilter(newest, {}, aborted, job.now_ms, job.delete_retention_ms)
    for source in job.sources:
        if source.next_offset <= job.first_dirty:
            continue
        for next_offset, data in _entries(files, source, pace):
            if next_offset <= job.first_dirty:
                continue
            if not _take_keys(newest, rules, data, job.first_dirty):
                return
            newest.end_offset = next_offset
        newest.end_offset = source.next_offset  # its last entries may have been removed


def _take_keys(newest: KeyOffsets, rules: BatchFilter, data: bytes, first_dirty: int) -> bool:
    if data[_MAGIC_AT] == MAGIC:
        header = read_header(data)
        verify_crc(data, 0, header)
        count = header.record_count
        if count and rules.takes_keys_of(header):
            if not newest.has_room(count):
                return False
            block = bytes(record_block(data, 0, header, MAX_BATCH_BYTES))
            newest.add_records(block, count, header.base_offset, first_dirty)
        return True
    found = list(messages(data, max_bytes=MAX_BATCH_BYTES))
    if not newest.has_room(len(found)):
        return False
    for message in found:
        if message.key is not None and message.offset >= first_dirty:
            newest.add(bytes(message.key), message.offset)
    return True


def _clean_group(
    job: CleanJob, first: int, after: int, files: FileSystem, rules: BatchFilter, pace: Pace
) -> CleanedFile:
    sources = job.sources[first:after]
    base_offset, next_offset = sources[0].base_offset, sources[-1].next_offset
    path = sources[0].path.with_name(f"{base_offset:011d}-{next_offset:011d}{CLEANED_SUFFIX}")
    rules.aborted_rows.clear()
    parts: list[bytes] = []
    waiting = written = 0
    try:
        with closing(files.open(path, create=True)) as file:
            file.truncate(0)  # left by an earlier cleaning that could not remove it
            for source in sources:
                rules.keep_legacy = source.modified_ms > job.legacy_horizon_ms
                for _, data in _entries(files, source, pace):
                    kept = rules.clean(data)
                    if kept is None:
                        continue
                    parts.append(kept)
                    waiting += len(kept)
                    if waiting >= _CHUNK_BYTES:
                        write_all(file, written, b"".join(parts))
                        pace(waiting)
                        written += waiting
                        parts, waiting = [], 0
            if parts:
                write_all(file, written, b"".join(parts))
            file.set_modified(sources[-1].modified_ms)
            file.sync()
    except BaseException:
        with suppress(OSError):
            files.remove(path)
        raise
    aborted = tuple(rules.aborted_rows)
    return CleanedFile(first, after, path, written + waiting, aborted, rules.newest.end_offset)


def _entries(files: FileSystem, source: Segment, pace: Pace) -> Generator[tuple[int, bytes], None, None]:
    """Each entry of a segment with its next offset, checking that offsets rise."""
    name, size, lowest = source.path.name, source.size, source.base_offset
    position = origin = 0
    chunk = b""
    with closing(files.open(source.path)) as file:
        while position < size:
            inside = position - origin
            if len(chunk) - inside < _SMALLEST:
                chunk, origin, inside = _read(file, source, position, _CHUNK_BYTES, pace), position, 0
            if len(chunk) < _SMALLEST:
                raise CorruptMessage(f"{name}: the entry at byte {position} is cut short")
            offset, length = _OFFSET_AND_LENGTH.unpack_from(chunk, inside)
            length += _ENTRY_OVERHEAD
            if not _SMALLEST <= length <= MAX_BATCH_BYTES:
                raise CorruptMessage(f"{name}: an entry of {length} bytes at byte {position}")
            if len(chunk) - inside < length:
                wanted = max(_CHUNK_BYTES, length)
                chunk, origin, inside = _read(file, source, position, wanted, pace), position, 0
                if len(chunk) < length:
                    raise CorruptMessage(f"{name}: the entry at byte {position} is cut short")
            data = chunk[inside : inside + length]
            last = offset
            if data[_MAGIC_AT] == MAGIC and length >= HEADER_SIZE:
                last += _LAST_DELTA.unpack_from(data, _LAST_DELTA_AT)[0]
            if not lowest <= offset <= last < source.next_offset:
                raise CorruptMessage(
                    f"{name}, byte {position}: offset {offset} stands where offset {lowest} or later should"
                    f" be, below {source.next_offset}"
                )
            lowest = last + 1
            position += length
            yield lowest, data


def _read(file: File, source: Segment, position: int, wanted: int, pace: Pace) -> bytes:
    wanted = min(wanted, source.size - position)
    pace(wanted)
    return file.read_at(position, wanted)
