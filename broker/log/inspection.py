"""The two families of logs as tables for those who look at their files: the counterpart of `generations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from broker.log.filesystem import FileSystem, read_file
from broker.log.generations import SINCE_08, V07, family_of
from broker.log.index_check import IndexCheck
from broker.log.offset_scheme import MAX_RELATIVE
from broker.log.places import SegmentPlace, partition_place
from broker.log.salvage import Scan
from broker.log.topic_store import (
    PARTITION_METADATA,
    parse_topic,
    read_partition_metadata,
    topic_record,
)
from pyspark_kafkalog.errors import StorageError


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
    told = _of_record(directory, files)
    if told is None:
        found = read_partition_metadata(files, directory)
        told = found[1] if found is not None else otherwise
    if told not in INSPECTIONS:
        known = " and ".join(INSPECTIONS)
        raise StorageError(
            f"{directory / PARTITION_METADATA}: generation {told[:100]} is not known here: {known} are"
        )
    return INSPECTIONS[told]


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
