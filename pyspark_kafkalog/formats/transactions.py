"""Finds the batches of a fetch response that read_committed hides."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pyspark_kafkalog.formats.batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    ControlType,
    control_type,
    decode_records,
    read_header,
)
from pyspark_kafkalog.formats.varint import Buffer


class AbortedTransactions:
    """The aborted transactions of one fetch answer. *Not thread-safe: belongs to one answer.*

    Every answer lists all aborted transactions that overlap it, so nothing is kept between answers. Source:
    Kafka protocol guide, Fetch, ``aborted_transactions``.
    """

    def __init__(self, listed: Sequence[tuple[int, int]]) -> None:
        self._upcoming = [(first_offset, producer_id) for producer_id, first_offset in listed]
        heapq.heapify(self._upcoming)
        self._aborted: set[int] = set()

    def advance(self, last_offset: int) -> None:
        """Start the transactions that begin at or before ``last_offset``."""
        while self._upcoming and self._upcoming[0][0] <= last_offset:
            self._aborted.add(heapq.heappop(self._upcoming)[1])

    def end(self, producer_id: int) -> None:
        self._aborted.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._aborted

    def hides(
        self, data: Buffer, pos: int, attributes: int, producer_id: int, last_offset: int, max_bytes: int
    ) -> bool:
        """Whether to hide the next batch, at ``pos``: a control batch or one of an aborted transaction."""
        if producer_id < 0:
            return bool(attributes & CONTROL_BIT)
        self.advance(last_offset)
        if attributes & CONTROL_BIT:
            records = decode_records(data, pos, read_header(data, pos), max_bytes, check_crc=False)
            if records and control_type(records[0]) is ControlType.ABORT:
                self.end(producer_id)
            return True
        return bool(attributes & TRANSACTIONAL_BIT) and producer_id in self

    def producers(self) -> set[int]:
        """Producer ids of current and upcoming aborted transactions."""
        return self._aborted.union(producer_id for _, producer_id in self._upcoming)
