"""Transactions as they are found in the segments of a log, for tools that read it from its beginning on."""

from __future__ import annotations

from kafkalog_broker.disk.filesystem import File
from kafkalog_broker.log.aborted import AbortedTransaction
from kafkalog_broker.log.append.producers import ProducerState
from kafkalog_broker.log.scan import FoundBatch
from kafkalog_broker.log.walk import Found
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES, ControlType, marker_type

_NEVER = 1 << 62


class FoundTransactions:
    """*Not thread-safe.* Follows the batches of a log; ``aborted`` are those of the segment at hand."""

    def __init__(self) -> None:
        self._state = ProducerState(_NEVER)
        self.aborted: list[AbortedTransaction] = []

    def begin_segment(self) -> None:
        """The batches that follow are of the next segment."""
        self.aborted = []

    def see(self, found: Found, file: File) -> None:
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
