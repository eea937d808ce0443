"""Walks a segment for verify, dump and export, and tracks its transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kafkalog_broker.disk.filesystem import File, FileSystem
from kafkalog_broker.inspect.inspection import Inspection, SegmentPlace
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.append.producer_states import ProducerState
from kafkalog_broker.log.scan import FoundBatch
from kafkalog_broker.log.walk import CandidateEntry, Damage
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES, ControlType, marker_type


class OpenSegment:
    """*Not thread-safe.* An open segment file; a context manager."""

    def __init__(self, file: File, place: SegmentPlace, inspection: Inspection) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        """Bytes, when last checked: a broker may be appending."""
        self._base_offset = place.base_offset
        self._scan = inspection.scan

    def __enter__(self) -> OpenSegment:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def entries(self, start: int = 0) -> Iterator[CandidateEntry | Damage]:
        """Entries, sound or not, and damage in bytes ``[start, size)``, in order and without gaps."""
        return self._scan(self.file, self.size, self._base_offset, start=start)

    def has_grown(self) -> bool:
        """Whether the file is longer than ``size``, which is then updated."""
        before, self.size = self.size, max(self.size, os.fstat(self.file.fileno()).st_size)
        return self.size > before


def open_segment(files: FileSystem, place: SegmentPlace, inspection: Inspection) -> OpenSegment:
    """Open a segment. Raises `OSError`; `FileNotFoundError`: it was removed."""
    return OpenSegment(files.open(place.path), place, inspection)


_NEVER = 1 << 62


class FoundTransactions:
    """*Not thread-safe.* Follows a log's batches; ``aborted`` are the current segment's."""

    def __init__(self) -> None:
        self._state = ProducerState(_NEVER)
        self.aborted: list[AbortedTransaction] = []

    def begin_segment(self) -> None:
        self.aborted = []

    def see(self, found: CandidateEntry, file: File) -> None:
        """Process the next sound entry. Raises `CorruptMessage`: an unreadable control batch."""
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
