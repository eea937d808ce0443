"""One fetch answer: which of its offsets are wanted, and what a generation's walker makes of it.

A walker knows where the entries of its generation are and which of them may be read: `batch_walk` those since
0.8, with `message_walk` for v0 and v1, and `entry_walk` those of 0.7.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark_kafkalog.columnar.engine import Block, Cursor, Engine, Limits, Stopped
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import TopicPartition


class AbortedTransactions:
    """Which batches belong to transactions that were aborted, within one fetch answer.

    *Not thread-safe: belongs to one answer.* The broker lists with every answer the aborted transactions
    that reach into it, so nothing is kept from one answer to the next.
    Source: Kafka protocol guide, Fetch, ``aborted_transactions``.
    """

    def __init__(self, listed: Sequence[tuple[int, int]]) -> None:
        self._upcoming = [(first_offset, producer_id) for producer_id, first_offset in listed]
        heapq.heapify(self._upcoming)
        self._aborted: set[int] = set()

    def advance(self, last_offset: int) -> None:
        """Note the transactions that begin at ``last_offset`` or before."""
        while self._upcoming and self._upcoming[0][0] <= last_offset:
            self._aborted.add(heapq.heappop(self._upcoming)[1])

    def end(self, producer_id: int) -> None:
        """Note an abort marker: what the producer sends after it belongs to another transaction."""
        self._aborted.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._aborted


Aborted = Sequence[tuple[int, int]] | AbortedTransactions | None
"""(producer id, first offset) as an answer lists them, or what a walk made of that; None: all is wanted."""

ANY_OFFSETS = ExpectedOffsets()


@dataclass(slots=True)
class Answer:
    """One fetch answer for one partition, and which of its offsets are wanted: ``[start, end)``."""

    data: memoryview
    log: TopicPartition
    start: int
    end: int
    max_batch_bytes: int
    """What one batch, set or entry may decompress to."""
    room: int = sys.maxsize
    """What all of them together may decompress to before the walk ends."""
    aborted: Aborted = None
    """The aborted transactions; None: uncommitted and aborted records are wanted too. Since 0.11."""
    expected: ExpectedOffsets = ANY_OFFSETS
    """What the offsets of the first batch must be. Since 0.8."""


class Walker(Protocol):
    """One generation's way over a fetch answer. *Not thread-safe: one decoder walks it, once.*"""

    columns_go_on: bool
    """Whether what follows a group goes into the same columns."""

    @property
    def next_offset(self) -> int:
        """Where reading goes on after what was walked."""
        ...

    def groups(self, engine: Engine, limits: Limits) -> Iterator[list[Block]]:
        """Blocks of one kind, as many as one call of an engine takes. Each group is used up, and `took`
        called, before the next is asked for.

        Raises:
            CorruptMessage: a checksum, length, count or offset is wrong, or compressed data is damaged.
            MessageTooLarge: a batch, set or entry decompresses to more than the limit.
            UnsupportedCompression: a codec is unknown, or its library not installed.
        """
        ...

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        """Note how far columns came in a group. Gives the offset after it, None in the middle of a batch of
        the log.

        Raises:
            KafkaError: ``stopped`` is at a fault.
        """
        ...
