"""The two families of logs as tables for offline tools, the counterpart of `broker.log.generations`; and the
check of the indexes beside a segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from broker.disk.filesystem import FileSystem, read_file
from broker.inspect.directory_listing import SegmentPlace, partition_place
from broker.log.generations import SINCE_08, V07, family_of
from broker.log.offset_scheme import MAX_RELATIVE, OFFSET_COLUMNS, TIME_COLUMNS, IndexFile, parse_index
from broker.log.walk import Found, Scan
from broker.store.topic_store import PARTITION_METADATA, parse_topic, read_partition_metadata, topic_record
from pyspark_kafkalog.errors import CorruptMessage, StorageError


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

    def see(self, batch: Found) -> None:
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
