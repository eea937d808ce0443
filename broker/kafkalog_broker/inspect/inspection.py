"""A data directory without a broker: its partitions and segments, and how each family's are checked.

Reads a directory of ours, a copy of one, or one with Apache Kafka's names (``topic-0``, ``<20 digits>.log``).
`INSPECTIONS` is the offline tools' counterpart of `kafkalog_broker.log.generations`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from kafkalog_broker.disk.data_directory import CLEAN_SHUTDOWN_NAME, META_NAME, RECOVERY_POINTS_NAME
from kafkalog_broker.disk.filesystem import FileSystem, read_file
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX
from kafkalog_broker.log.cleaning.swap import decided_in, with_decided
from kafkalog_broker.log.generations import SINCE_08, V07, family_of
from kafkalog_broker.log.offset_scheme import (
    MAX_RELATIVE,
    OFFSET_COLUMNS,
    TIME_COLUMNS,
    IndexFile,
    parse_index,
)
from kafkalog_broker.log.segment import SUFFIX
from kafkalog_broker.log.segment_list import SegmentList, read_segment_list
from kafkalog_broker.log.walk import CandidateEntry, Scan
from kafkalog_broker.logs.topic_store import (
    PARTITION_METADATA,
    TOPICS_DIRECTORY,
    parse_topic,
    partition_of,
    read_partition_metadata,
    topic_record,
)
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Inspection:
    """*Thread-safe: it never changes.* How logs of one family are looked at."""

    generation: str
    """The name of the family."""
    entry: str
    an_entry: str
    entries: str
    records: str
    """What is in them, in words: an entry, several of them, and what these hold."""
    scan: Scan
    index: Callable[[SegmentPlace, FileSystem], IndexCheck | None]
    """The check of the indexes beside a segment; None where there are none that we know."""
    max_relative: int | None
    """The most that an offset may be above its segment's first."""
    kafka_reads_it: bool
    """Whether the Kafka of today reads such logs."""


INSPECTIONS: Mapping[str, Inspection] = MappingProxyType(
    {
        SINCE_08.generation: Inspection(
            generation=SINCE_08.generation,
            entry="batch",
            an_entry="a batch",
            entries="batches",
            records="records",
            scan=SINCE_08.scan,
            index=lambda segment, files: IndexCheck(segment, files) if segment.is_ours else None,
            max_relative=MAX_RELATIVE,
            kafka_reads_it=True,
        ),
        V07.generation: Inspection(
            generation=V07.generation,
            entry="entry",
            an_entry="an entry",
            entries="entries",
            records="messages",
            scan=V07.scan,
            index=lambda _segment, _files: None,
            max_relative=None,
            kafka_reads_it=False,
        ),
    }
)


def inspection_of(directory: Path, otherwise: str, files: FileSystem) -> Inspection:
    """How to look at the segments in ``directory``: as its topic's record says, else its
    ``partition.metadata``, else as those of generation ``otherwise``. The bytes themselves are not asked.

    Raises:
        InvalidConfig: there is no generation ``otherwise``.
        StorageError: ``partition.metadata`` names a generation that is not known here.
        OSError: the disk refused to read.
    """
    family_of(otherwise)
    generation = _of_record(directory, files)
    if generation is None:
        found = read_partition_metadata(files, directory)
        generation = found[1] if found is not None else otherwise
    if generation not in INSPECTIONS:
        known = " and ".join(INSPECTIONS)
        raise StorageError(
            f"{directory / PARTITION_METADATA}: generation {generation[:100]} is not known here: {known} are"
        )
    return INSPECTIONS[generation]


def _of_record(directory: Path, files: FileSystem) -> str | None:
    """The generation in the record of the topic, in the data directory above; None where it does not say."""
    directory = directory.absolute()
    place = partition_place(directory)
    if place is None:
        return None
    path = topic_record(directory.parent, place.partition.topic)
    try:
        return parse_topic(read_file(files, path), path)[0].generation
    except (FileNotFoundError, StorageError):
        return None


_MENDED = "the broker rebuilds it when it needs it"


class IndexCheck:
    """*Not thread-safe.* Reads both indexes of a segment, and crosses off each row whose batch is seen."""

    def __init__(self, segment: SegmentPlace, files: FileSystem) -> None:
        """Raises `OSError` when the disk refuses to read."""
        self._base_offset = segment.base_offset
        offsets, times = segment.path.with_suffix(".index"), segment.path.with_suffix(".timeindex")
        self._read: list[tuple[Path, IndexFile | str | None]] = [
            (offsets, _read(offsets, OFFSET_COLUMNS, files)),
            (times, _read(times, TIME_COLUMNS, files)),
        ]
        self._positions = _rows(self._read[0][1])
        """Position in the segment to relative offset, of rows whose batch has not been seen."""
        self._times = _rows(self._read[1][1])
        """Relative offset to timestamp, likewise."""

    def see(self, batch: CandidateEntry) -> None:
        """A sound batch of the segment."""
        position, relative = batch.position, batch.first_offset - self._base_offset
        if self._positions.get(position) == relative:
            del self._positions[position]
        if self._times.get(relative) == batch.max_timestamp:
            del self._times[relative]

    def findings(self, size: int, *, settled: bool, last: bool, intact: bool) -> list[tuple[Path, str, bool]]:
        """File, what is wrong with it, whether that is damage; once the segment's ``size`` bytes were seen.

        Unless the logs were closed (``settled``), the ``last`` segment's indexes are those of an earlier
        stop. Rows that lead to no batch count only in an ``intact`` segment: else the batch was lost.
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
                    found.append((path, f"is missing: {_MENDED}", False))
            elif isinstance(content, str):
                found.append((path, f"{content}: {_MENDED}", not growing))
            elif content.base_offset != self._base_offset:
                what = f"is that of a segment from offset {content.base_offset} on: {_MENDED}"
                found.append((path, what, True))
            elif content.segment_size != size:
                if not growing:
                    what = (
                        f"is of its segment at {content.segment_size} bytes, which now has {size}: {_MENDED}"
                    )
                    found.append((path, what, False))
            elif not (_rises(content.first) and _rises(content.second)):
                found.append((path, "its rows do not rise: remove it", True))
            elif unseen and intact:
                first = row(*next(iter(unseen.items())))
                what = f"{len(unseen)} rows lead to no batch, the first {first}: remove it"
                found.append((path, what, True))
        return found


def _read(path: Path, columns: str, files: FileSystem) -> IndexFile | str | None:
    """What the file holds, why it holds nothing, or None when there is none."""
    try:
        return parse_index(read_file(files, path), columns)
    except FileNotFoundError:
        return None
    except CorruptMessage as e:
        return str(e)


def _rows(content: IndexFile | str | None) -> dict[int, int]:
    """The second column to the first, which is how a batch finds its row."""
    if not isinstance(content, IndexFile):
        return {}
    return dict(zip(content.second, content.first, strict=True))


def _rises(column: array[int]) -> bool:
    return all(a < b for a, b in pairwise(column))


KAFKA_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)

_SEGMENT = re.compile(r"([0-9]+)(\.kafka|\.log)(\.deleted)?")
_KAFKA_PARTITION = re.compile(r"(.+)-(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A segment's file; ``size`` in bytes when it was looked at."""

    path: Path
    base_offset: int
    size: int

    @property
    def is_ours(self) -> bool:
        """Whether the files beside it are written by this broker, and not by Apache Kafka."""
        return self.path.suffix == SUFFIX


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition's directory."""

    path: Path
    partition: TopicPartition


def segment_place(path: Path) -> SegmentPlace | None:
    """The segment at ``path``; None when it has no segment's name. Raises `OSError`."""
    named = _SEGMENT.fullmatch(path.name)
    return SegmentPlace(path, int(named[1]), path.stat().st_size) if named else None


def segments_in(directory: Path, files: FileSystem) -> list[SegmentPlace]:
    """The segments of a partition, in the order of their offsets, deleted ones left out. What a cleaner has
    decided counts as done. Raises `OSError`.
    """
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
    """The list of these segments; None when there is none or it is not whole. Raises `OSError`."""
    decided = decided_in(files.scan(directory))
    listed = read_segment_list(files, directory)
    return listed if listed is None else with_decided(listed, decided)


def partition_place(directory: Path) -> PartitionPlace | None:
    """The partition whose directory this is, by its name; None when it is none's."""
    kafka = _KAFKA_PARTITION.fullmatch(directory.name)
    partition = partition_of(directory.name)
    if partition is None and kafka is not None:
        partition = TopicPartition(kafka[1], int(kafka[2]))
    return None if partition is None else PartitionPlace(directory, partition)


def partitions_in(data_directory: Path, files: FileSystem) -> list[PartitionPlace]:
    """The partitions of a data directory, in order of topic and number. Raises `OSError`.

    A directory counts by its name and by what is in it: a segment.
    """
    found = []
    for entry in files.scan(data_directory):
        # What is being deleted has a name that is no partition's.
        place = partition_place(data_directory / entry.name) if entry.is_directory else None
        with suppress(FileNotFoundError):  # its deletion has just begun
            if place is not None and segments_in(place.path, files):
                found.append(place)
    return sorted(found, key=lambda place: place.partition)


def is_data_directory(path: Path) -> bool:
    """Whether a directory holds partitions, and not the segments of one."""
    names = (TOPICS_DIRECTORY, META_NAME, CLEAN_SHUTDOWN_NAME, RECOVERY_POINTS_NAME)
    return any((path / name).exists() for name in names)


def kind_of(path: Path, files: FileSystem) -> str:
    """What ``path`` is: "data", "partition", "segment" or "index".

    Raises:
        InvalidConfig: it is none of them; the text says what was looked for.
        OSError: it cannot be read.
    """
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
        f"{path} is no segment: those are named <offset>{SUFFIX} or <offset>{KAFKA_SUFFIX}, their indexes"
        f" {', '.join(INDEX_SUFFIXES)}"
    )
