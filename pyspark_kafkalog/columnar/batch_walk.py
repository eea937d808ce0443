"""Walks one fetch answer, batch by batch, to the blocks of records that a reader may see.

Here is everything that is decided per batch: where the answer ends, checksums, decompression, control
batches, aborted transactions and the offsets asked for. What is decided per record is the engines' work.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Sequence

from pyspark_kafkalog.columnar.engine import Block
from pyspark_kafkalog.columnar.message_walk import Walker, step
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    ControlType,
    control_type,
    decode_records,
    read_header,
    read_header_fields,
    record_block,
    verify_crc,
)
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, frames
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES
from pyspark_kafkalog.types import TopicPartition

_LENGTH_POSITION = 8
_MAGIC_POSITION = 16
_MIN_LENGTH = HEADER_SIZE - BATCH_OVERHEAD
_MESSAGES = 0

DECOMPRESSED_BYTES = 64 << 20
DECOMPRESSED_RATIO = 16
"""How much one answer may become at once, the larger of the two: bytes, and so many times its own size. A
reader asks again for what lies behind that. Common data stays far below; a producer's bombs do not."""


class AbortedTransactions:
    """Which batches belong to transactions that were aborted, within one fetch answer.

    *Not thread-safe: belongs to one `Answer`.* The broker lists with every answer the aborted transactions
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


class Answer:
    """One fetch answer for one partition.

    *Not thread-safe: one caller walks it, once.* ``next_offset`` is right at every moment for what has been
    walked.
    """

    def __init__(
        self,
        data: memoryview,
        log: TopicPartition,
        start: int,
        end: int,
        *,
        aborted: Sequence[tuple[int, int]] | AbortedTransactions | None,
        max_batch_bytes: int,
        streamed: bool = False,
        place: ExpectedOffsets = ExpectedOffsets(),  # noqa: B008  (never changes)
    ) -> None:
        """``aborted`` None means uncommitted and aborted records are to be seen as well; what has been begun
        with an earlier part of the same answer goes on.

        ``place`` is what the offsets of the first entry must be. ``streamed``: the caller lets go of each
        block before it takes the next, so that all of the answer may be walked, whatever it decompresses to.
        """
        self._data, self._log = data, log
        self._end = end
        if not (aborted is None or isinstance(aborted, AbortedTransactions)):
            aborted = AbortedTransactions(aborted)
        self._aborted = aborted
        self._max_batch_bytes = max_batch_bytes
        room = max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * len(data))
        self._room = sys.maxsize if streamed else room
        self._place = place
        self.next_offset = start

    def blocks(self, walk: Walker) -> Iterator[Block]:
        """The blocks with records in the range asked for, in the answer's order; ``walk`` is an engine's.

        Of what comes after the range's end only the next entry's offset is looked at: nothing else in it can
        spoil the range. So it is with what comes after `DECOMPRESSED_BYTES`, unless the answer is streamed.
        A block is given out before the entry after it is looked at: whoever passes rows on takes the next
        block first, or the end.

        Raises:
            CorruptMessage: a batch's length, header, offsets, checksum or compressed data is wrong.
            MessageTooLarge: a batch decompresses to more than the limit.
            UnsupportedCompression: a codec is unknown, or its library not installed.
        """
        pos, data = 0, self._data
        at = self.next_offset
        lowest, asked, below = self._place
        try:
            while at < self._end and self._room > 0 and (size := self._whole_batch(pos)) is not None:
                if size == _MESSAGES:
                    place = ExpectedOffsets(lowest, asked, below)
                    found = step(data, pos, walk, place, at, self._end, max_bytes=self._max_batch_bytes)
                    self._room -= found.decompressed_bytes
                    at = self.next_offset = found.next_offset
                    lowest = found.lowest
                    yield from found.blocks
                    if found.position is None:
                        return
                    pos = found.position
                    continue
                # A batch object would cost as much as the checksum of 16 KiB.
                (base, _, _, _, crc, attributes, last_delta, base_time, max_time, producer_id, _, _, count
                 ) = read_header_fields(data, pos)  # fmt: skip
                last = base + last_delta
                if base < lowest or last < asked or last >= below:
                    raise ExpectedOffsets(lowest, asked, below).refuse(base, last)
                lowest = last + 1
                if base >= self._end:
                    # A gap up to the end of the range, or a damaged offset: then what comes next is lower.
                    self._check_next(pos + size, lowest)
                    self.next_offset = base
                    return
                # The checksum comes before anything is believed, also of a batch that is then left out.
                if crc32c(data[pos + ATTRIBUTES_POSITION : pos + size]) != crc:
                    verify_crc(data, pos, read_header(data, pos))
                visible = self._visible(pos, attributes, producer_id, last)
                if visible and last >= at and (count or size > HEADER_SIZE):
                    append_time = attributes & LOG_APPEND_TIME_BIT
                    where = self._records(pos, size, count, attributes & CODEC_BITS)
                    low, high = max(0, at - base), min(last_delta + 1, self._end - base)
                    time = max_time if append_time else base_time
                    self.next_offset = lowest
                    yield Block(*where, count, last_delta, low, high, base, time, append_time >> 3)
                at = self.next_offset = max(at, lowest)
                pos += size
            self._check_next(pos, lowest)
        except KafkaError as e:
            raise type(e)(f"{self._log}, reading on from offset {at}: {e}") from e

    def _check_next(self, pos: int, lowest: int) -> None:
        """Compare the offset of the entry at ``pos``, if that much of it is there, with the entry before."""
        if len(self._data) - pos >= _LENGTH_POSITION:
            base = int.from_bytes(self._data[pos : pos + _LENGTH_POSITION], "big", signed=True)
            if base < lowest:
                raise ExpectedOffsets(lowest).refuse(base, base)

    def _whole_batch(self, pos: int) -> int | None:
        """Bytes of the batch at ``pos``, `_MESSAGES` where it is none but of v0 or v1; None where the answer
        ends or cuts it short.
        """
        data, left = self._data, len(self._data) - pos
        if left < BATCH_OVERHEAD:
            return None
        length = int.from_bytes(data[pos + _LENGTH_POSITION : pos + BATCH_OVERHEAD], "big", signed=True)
        if left > _MAGIC_POSITION and data[pos + _MAGIC_POSITION] < MAGIC:
            return _MESSAGES
        if length < _MIN_LENGTH:
            # No format at all: the walk over all of them knows what to say.
            next(frames(data[pos:]), None)
            return None
        size = BATCH_OVERHEAD + length
        return size if size <= left else None

    def _visible(self, pos: int, attributes: int, producer_id: int, last_offset: int) -> bool:
        """Whether the batch's records are for users: neither control records nor, if so asked, aborted
        ones.
        """
        if self._aborted is None or producer_id < 0:
            return not attributes & CONTROL_BIT
        self._aborted.advance(last_offset)
        if attributes & CONTROL_BIT:
            header = read_header(self._data, pos)
            records = decode_records(self._data, pos, header, self._max_batch_bytes, check_crc=False)
            if records and control_type(records[0]) is ControlType.ABORT:
                self._aborted.end(producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and producer_id in self._aborted)

    def _records(self, pos: int, size: int, count: int, codec: int) -> tuple[memoryview, int, int]:
        """Where the batch's records are once decompressed: buffer, start, end."""
        buffer, start, end = self._data, pos + HEADER_SIZE, pos + size
        if codec:
            buffer = record_block(self._data, pos, read_header(self._data, pos), self._max_batch_bytes)
            start, end = 0, len(buffer)
            self._room -= end
        if count * MIN_RECORD_BYTES > end - start:
            raise CorruptMessage(f"{count} records cannot be in {end - start} bytes")
        return buffer, start, end
