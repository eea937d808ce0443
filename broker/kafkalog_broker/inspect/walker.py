"""The walk through a segment that verify, dump and export share, and the transactions found on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kafkalog_broker.disk.filesystem import File, FileSystem
from kafkalog_broker.inspect.inspection import Inspection, SegmentPlace
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.append.producers import ProducerState
from kafkalog_broker.log.scan import FoundBatch
from kafkalog_broker.log.walk import CandidateEntry, Damage
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES, ControlType, marker_type


class OpenSegment:
    """*Not thread-safe.* A segment's file while its entries are read; a context manager that closes it."""

    def __init__(self, file: File, place: SegmentPlace, inspection: Inspection) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        """In bytes, when it was looked at last: a broker may be appending."""
        self._base_offset = place.base_offset
        self._scan = inspection.scan

    def __enter__(self) -> OpenSegment:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def entries(self, start: int = 0) -> Iterator[CandidateEntry | Damage]:
        """What is in bytes ``[start, size)``, in order and without gaps: entries by their headers, sound or
        not, and places without any. Raises `OSError`: the disk refused to read.
        """
        return self._scan(self.file, self.size, self._base_offset, start=start)

    def has_grown(self) -> bool:
        """Whether the file is longer than ``size``, which is then corrected."""
        before, self.size = self.size, max(self.size, os.fstat(self.file.fileno()).st_size)
        return self.size > before


def open_segment(files: FileSystem, place: SegmentPlace, inspection: Inspection) -> OpenSegment:
    """Raises `FileNotFoundError`: it was removed, and another `OSError` when the disk refuses."""
    return OpenSegment(files.open(place.path), place, inspection)


_NEVER = 1 << 62


class FoundTransactions:
    """*Not thread-safe.* Follows the batches of a log; ``aborted`` are those of the segment at hand."""

    def __init__(self) -> None:
        self._state = ProducerState(_NEVER)
        self.aborted: list[AbortedTransaction] = []

    def begin_segment(self) -> None:
        """The batches that follow are of the next segment."""
        self.aborted = []

    def see(self, found: CandidateEntry, file: File) -> None:
        """The next sound entry. Raises `CorruptMessage`: a control batch that cannot be read."""
        if not isinstance(found, FoundBatch) or found.header.producer_id < 0:
            return
        header = found.header
        if not header.is_control:
            self._state.record(header, found.first_offset, found.last_offset, 0)
        elif header.record_count:
            kind = marker_type(file.read_at(found.position, MARKER_HEAD_BYTES))
            if kind is not ControlType.UNKNOWN:
                ended = self._state.end(header, kind, found.first_offset, 0)
                if ended is not None:
                    self.aborted.append(ended)
