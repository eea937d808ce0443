"""Finds partitions and segments offline, in our directories, copies and Apache Kafka's (``topic-0``). A
broker may change files between two reads, so apparent damage counts only if found twice.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from kafkalog_broker.disk.data_directory import (
    CLEAN_SHUTDOWN_NAME,
    FUTURES_NAME,
    LOCK_NAME,
    META_NAME,
    RECOVERY_POINTS_NAME,
    read_table,
)
from kafkalog_broker.disk.filesystem import DirectoryEntry, File, FileSystem, read_file
from kafkalog_broker.disk.process_lock import holder_of
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, AbortedTransaction
from kafkalog_broker.log.append.producer_states import ProducerState
from kafkalog_broker.log.cleaning.swap import decided_in, with_decided
from kafkalog_broker.log.generations import SINCE_08, V07, family_of
from kafkalog_broker.log.offset_scheme import (
    MAX_RELATIVE,
    OFFSET_COLUMNS,
    TIME_COLUMNS,
    IndexFile,
    parse_index,
)
from kafkalog_broker.log.scan import FoundBatch
from kafkalog_broker.log.segment import SUFFIX
from kafkalog_broker.log.segment_list import SegmentList, read_segment_list
from kafkalog_broker.log.walk import CandidateEntry, Damage, Scan
from kafkalog_broker.logs import topic_store
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, StorageError
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES
from pyspark_kafkalog.types import TopicPartition


class Finding(msgspec.Struct, frozen=True):
    """A finding and its place; `damage`, or only a note."""

    path: Path
    what: str
    position: int | None = None
    damage: bool = True

    def __str__(self) -> str:
        place = str(self.path) if self.position is None else f"{self.path}, byte {self.position}"
        return f"{'damage' if self.damage else 'note'}: {place}: {self.what}"


def note(path: Path, what: str, position: int | None = None) -> Finding:
    return Finding(path, what, position, damage=False)


def damage_in(findings: Iterable[Finding]) -> frozenset[Finding]:
    return frozenset(finding for finding in findings if finding.damage)


class Inspection(msgspec.Struct, frozen=True):
    """*Thread-safe: immutable.* How to inspect logs of one family."""

    generation: str
    entry: str
    an_entry: str
    entries: str
    records: str
    """Words for an entry, several, and their contents."""
    scan: Scan
    index: Callable[[SegmentPlace, FileSystem], IndexCheck | None]
    """Check of a segment's indexes; None if there are none of ours."""
    max_relative: int | None
    """Largest offset relative to the segment's base."""
    kafka_reads_it: bool
    """Whether today's Kafka reads such logs."""


INSPECTIONS: Mapping[str, Inspection] = MappingProxyType(
    {
        SINCE_08.generation: Inspection(
            SINCE_08.generation, "batch", "a batch", "batches", "records", SINCE_08.scan,
            index=lambda segment, files: IndexCheck(segment, files) if segment.is_ours else None,
            max_relative=MAX_RELATIVE, kafka_reads_it=True,
        ),
        V07.generation: Inspection(
            V07.generation, "entry", "an entry", "entries", "messages", V07.scan,
            index=lambda _segment, _files: None, max_relative=None, kafka_reads_it=False,
        ),
    }
)  # fmt: skip


def inspection_of(directory: Path, otherwise: str, files: FileSystem) -> Inspection:
    """By the topic's record, else ``partition.metadata``, else ``otherwise``."""
    family_of(otherwise)
    generation = _of_record(directory, files)
    if generation is None:
        found = topic_store.read_partition_metadata(files, directory)
        generation = found[1] if found is not None else otherwise
    if generation not in INSPECTIONS:
        known, path = " and ".join(INSPECTIONS), directory / topic_store.PARTITION_METADATA
        raise StorageError(f"{path}: generation {generation[:100]} is not known here: {known} are")
    return INSPECTIONS[generation]


def _of_record(directory: Path, files: FileSystem) -> str | None:
    directory = directory.absolute()
    place = partition_place(directory)
    if place is None:
        return None
    path = topic_store.topic_record(directory.parent, place.partition.topic)
    try:
        return topic_store.parse_topic(read_file(files, path), path)[0].generation
    except (FileNotFoundError, StorageError):
        return None


_MENDED = "the broker rebuilds it when it needs it"


class IndexCheck:
    """*Not thread-safe.* Reads a segment's indexes, and ticks off each row whose batch is seen."""

    def __init__(self, segment: SegmentPlace, files: FileSystem) -> None:
        self._base_offset = segment.base_offset
        offsets, times = segment.path.with_suffix(".index"), segment.path.with_suffix(".timeindex")
        self._read: list[tuple[Path, IndexFile | str | None]] = [
            (offsets, _read(offsets, OFFSET_COLUMNS, files)),
            (times, _read(times, TIME_COLUMNS, files)),
        ]
        self._positions = _rows(self._read[0][1])
        """Position to relative offset, for rows whose batch was not seen."""
        self._times = _rows(self._read[1][1])
        """Relative offset to timestamp, likewise."""

    def see(self, batch: CandidateEntry) -> None:
        position, relative = batch.position, batch.first_offset - self._base_offset
        if self._positions.get(position) == relative:
            del self._positions[position]
        if self._times.get(relative) == batch.max_timestamp:
            del self._times[relative]

    def findings(self, size: int, *, settled: bool, last: bool, intact: bool) -> list[Finding]:
        """What is wrong after the segment's ``size`` bytes were seen. Unless ``settled``, the ``last`` one's
        indexes are outdated. Rows without batch count if ``intact``.
        """
        found = []
        base = self._base_offset
        rest: tuple[tuple[dict[int, int], Callable[[int, int], str]], ...] = (
            (self._positions, lambda position, relative: f"offset {base + relative} at byte {position}"),
            (self._times, lambda relative, timestamp: f"timestamp {timestamp} at offset {base + relative}"),
        )
        for (path, content), (unseen, row) in zip(self._read, rest, strict=True):
            growing = last and not settled
            if content is None:
                if not growing and size:
                    found.append(note(path, f"is missing: {_MENDED}"))
            elif isinstance(content, str):
                found.append(Finding(path, f"{content}: {_MENDED}", damage=not growing))
            elif content.base_offset != base:
                what = f"is that of a segment from offset {content.base_offset} on: {_MENDED}"
                found.append(Finding(path, what))
            elif content.segment_size != size:
                if not growing:
                    what = f"is of its segment at {content.segment_size} bytes, which now has {size}"
                    found.append(note(path, f"{what}: {_MENDED}"))
            elif not (_rises(content.first) and _rises(content.second)):
                found.append(Finding(path, "its rows do not rise: remove it"))
            elif unseen and intact:
                first = row(*next(iter(unseen.items())))
                what = f"{len(unseen)} rows lead to no batch, the first {first}: remove it"
                found.append(Finding(path, what))
        return found


def _read(path: Path, columns: str, files: FileSystem) -> IndexFile | str | None:
    try:
        return parse_index(read_file(files, path), columns)
    except FileNotFoundError:
        return None
    except CorruptMessage as e:
        return str(e)


def _rows(content: IndexFile | str | None) -> dict[int, int]:
    if not isinstance(content, IndexFile):
        return {}
    return dict(zip(content.second, content.first, strict=True))


def _rises(column: array[int]) -> bool:
    return all(a < b for a, b in pairwise(column))


KAFKA_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)

_SEGMENT = re.compile(r"([0-9]+)(\.kafka|\.log)(\.deleted)?")
_KAFKA_PARTITION = re.compile(r"(.+)-(0|[1-9][0-9]*)")


class SegmentPlace(msgspec.Struct, frozen=True):
    """A segment file; ``size`` in bytes when found."""

    path: Path
    base_offset: int
    size: int

    @property
    def is_ours(self) -> bool:
        """Whether this broker wrote the files beside it, not Apache Kafka."""
        return self.path.suffix == SUFFIX


class PartitionPlace(msgspec.Struct, frozen=True):
    path: Path
    partition: TopicPartition


def segment_place(path: Path) -> SegmentPlace | None:
    named = _SEGMENT.fullmatch(path.name)
    return SegmentPlace(path, int(named[1]), path.stat().st_size) if named else None


def segments_in(directory: Path, files: FileSystem) -> list[SegmentPlace]:
    """Segments of a partition by offset, without deleted ones, with decided cleanings applied."""
    found = []
    entries = files.scan(directory)
    for entry in entries:
        named = _SEGMENT.fullmatch(entry.name)
        if named is not None and not named[3] and not entry.is_directory:
            found.append(SegmentPlace(directory / entry.name, int(named[1]), entry.size))
    for swap in decided_in(entries):
        found = [place for place in found if not swap.base_offset <= place.base_offset < swap.end_offset]
        found.append(SegmentPlace(directory / swap.file.name, swap.base_offset, swap.file.size))
    return sorted(found, key=lambda segment: segment.base_offset)


def segment_list_in(directory: Path, files: FileSystem) -> SegmentList | None:
    """The segment list, with decided cleanings applied; None if missing or damaged. Raises `OSError`."""
    decided = decided_in(files.scan(directory))
    listed = read_segment_list(files, directory)
    return listed if listed is None else with_decided(listed, decided)


def partition_place(directory: Path) -> PartitionPlace | None:
    kafka = _KAFKA_PARTITION.fullmatch(directory.name)
    partition = topic_store.partition_of(directory.name)
    if partition is None and kafka is not None:
        partition = TopicPartition(kafka[1], int(kafka[2]))
    return None if partition is None else PartitionPlace(directory, partition)


def partitions_in(data_directory: Path, files: FileSystem) -> list[PartitionPlace]:
    """Partitions of a data directory with at least one segment, sorted, without the unfinished copies of
    those being moved there. Raises `OSError`.
    """
    found, futures = [], read_table(files, data_directory / FUTURES_NAME) or {}
    for entry in files.scan(data_directory):
        if entry.name in futures:
            continue
        # Directories being deleted are not named like partitions.
        place = partition_place(data_directory / entry.name) if entry.is_directory else None
        with suppress(FileNotFoundError):  # being deleted
            if place is not None and segments_in(place.path, files):
                found.append(place)
    return sorted(found, key=lambda place: place.partition)


def is_data_directory(path: Path) -> bool:
    names = (topic_store.TOPICS_DIRECTORY, META_NAME, CLEAN_SHUTDOWN_NAME, RECOVERY_POINTS_NAME)
    return any((path / name).exists() for name in names)


def kind_of(path: Path, files: FileSystem) -> str:
    """Kind of ``path``: "data", "partition", "segment" or "index". Raises `InvalidConfig`; `OSError`."""
    if not path.exists():
        raise InvalidConfig(f"{path}: no such file or directory")
    if path.is_dir():
        if is_data_directory(path):
            return "data"
        if segments_in(path, files):
            return "partition"
        if partitions_in(path, files):
            return "data"
        raise InvalidConfig(
            f"{path} is neither a data directory nor has segments ({SUFFIX}, {KAFKA_SUFFIX}) in it"
        )
    if segment_place(path) is not None:
        return "segment"
    if path.suffix in INDEX_SUFFIXES:
        return "index"
    raise InvalidConfig(
        f"{path} is not a segment: those are named <offset>{SUFFIX} or <offset>{KAFKA_SUFFIX}, their indexes"
        f" {', '.join(INDEX_SUFFIXES)}"
    )


class OpenSegment:
    """*Not thread-safe.* An open segment file; a context manager."""

    def __init__(self, files: FileSystem, place: SegmentPlace, inspection: Inspection) -> None:
        """Raises `OSError`; `FileNotFoundError`: it was removed."""
        self.file = files.open(place.path)
        self.size = os.fstat(self.file.fileno()).st_size
        """Bytes, when last checked: a broker may be appending."""
        self._base_offset = place.base_offset
        self._scan = inspection.scan

    def __enter__(self) -> OpenSegment:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def entries(self, start: int = 0) -> Iterator[CandidateEntry | Damage]:
        """Entries, sound or not, and damage in bytes ``[start, size)``, in order and without gaps."""
        return self._scan(self.file, self.size, self._base_offset, start)

    def has_grown(self) -> bool:
        """Whether the file is longer than ``size``, which is then updated."""
        before, self.size = self.size, max(self.size, os.fstat(self.file.fileno()).st_size)
        return self.size > before


_NEVER = 1 << 62


class FoundTransactions:
    """*Not thread-safe.* Follows a log's batches; ``aborted`` are the current segment's."""

    def __init__(self) -> None:
        self._state = ProducerState(_NEVER)
        self.aborted: list[AbortedTransaction] = []

    def begin_segment(self) -> None:
        self.aborted = []

    def see(self, found: CandidateEntry, file: File) -> None:
        if not isinstance(found, FoundBatch) or found.header.producer_id < 0:
            return
        head = file.read_at(found.position, MARKER_HEAD_BYTES) if found.header.is_control else b""
        ended = self._state.learn(found.header, head, 0)
        if ended is not None:
            self.aborted.append(ended)


T = TypeVar("T")

_MOST_LOOKS = 5
"""Two suffice unless the second finds new damage."""
_PAUSE_SECONDS = 1.0
"""Pause beside a running broker, to let it finish writing."""


def look_again(
    look: Callable[[], T],
    damage: Callable[[T], frozenset[object]],
    state: Callable[[], object],
    data_directory: Path,
    clock: Clock,
) -> T:
    """Result of ``look`` once its ``damage`` is certain: none, ``state`` unchanged, or found twice."""
    before = state()
    found = look()
    known = damage(found)
    for _ in range(_MOST_LOOKS - 1):
        if not known:
            break
        if _is_served(data_directory):
            clock.sleep(_PAUSE_SECONDS)
        now = state()
        if now == before:
            break
        before, found = now, look()
        last, known = known, damage(found)
        if known <= last:
            break
    return found


def files_in(directory: Path, files: FileSystem) -> frozenset[DirectoryEntry]:
    try:
        return frozenset(files.scan(directory))
    except FileNotFoundError:
        return frozenset()


def _is_served(data_directory: Path) -> bool:
    """Whether a local broker seems to run on the directory. Trying its lock could fail a broker's start."""
    try:
        holder = holder_of(data_directory / LOCK_NAME)
    except OSError:
        return False
    return holder is not None and holder.alive
