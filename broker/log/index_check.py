"""Whether the indexes beside a segment lead where they say: compared with its batches, one walk for both."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from broker.log.filesystem import FileSystem, read_file
from broker.log.index import OFFSET_COLUMNS, TIME_COLUMNS, IndexFile, parse_index
from broker.log.places import SegmentPlace
from broker.log.salvage import Found
from pyspark_kafkalog.errors import CorruptMessage

_MENDED = "the broker builds it anew when it needs it"


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
