"""What is in a data directory, without opening it as a broker: partitions, segments, what a stop noted.

Reads a directory of ours, a copy of one, or one with Apache Kafka's names (``topic-0``, ``<20 digits>.log``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from broker.disk.data_directory import CLEAN_SHUTDOWN_NAME, META_NAME, RECOVERY_POINTS_NAME, read_table
from broker.disk.filesystem import FileSystem
from broker.log.segment import SUFFIX
from broker.store.topic_store import TOPICS_DIRECTORY, partition_of
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

KAFKA_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex")

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


@dataclass(frozen=True, slots=True)
class Notes:
    """What a data directory says of its logs, by the name of a partition's directory.

    ``clean`` is None unless the broker has stopped cleanly: end offset, last segment's base offset and size.
    ``points`` are a number of the topic, and the offset below which the log was forced to disk. A file that
    is not whole counts as none, and is among the ``faults`` with what is wrong.
    """

    clean: dict[str, tuple[int, ...]] | None
    points: dict[str, tuple[int, ...]]
    faults: tuple[tuple[Path, str], ...] = ()


def segment_place(path: Path) -> SegmentPlace | None:
    """The segment at ``path``; None when it has no segment's name. Raises `OSError`."""
    named = _SEGMENT.fullmatch(path.name)
    return SegmentPlace(path, int(named[1]), path.stat().st_size) if named else None


def segments_in(directory: Path, files: FileSystem) -> list[SegmentPlace]:
    """The segments of a partition, in the order of their offsets, deleted ones left out. Raises `OSError`."""
    found = []
    for entry in files.scan(directory):
        named = _SEGMENT.fullmatch(entry.name)
        if named is not None and not named[3] and not entry.is_directory:
            found.append(SegmentPlace(directory / entry.name, int(named[1]), entry.size))
    return sorted(found, key=lambda segment: segment.base_offset)


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
        f" {' and '.join(INDEX_SUFFIXES)}"
    )


def read_notes(data_directory: Path, files: FileSystem) -> Notes:
    """What a data directory says of its logs. Raises `OSError`."""
    faults = []
    tables: list[dict[str, tuple[int, ...]] | None] = []
    for name in (CLEAN_SHUTDOWN_NAME, RECOVERY_POINTS_NAME):
        path = data_directory / name
        table = read_table(files, path)
        if table is None and path.exists():
            faults.append((path, "it is cut short or changed"))
        tables.append(table)
    clean, points = tables
    return Notes(clean, points or {}, tuple(faults))
