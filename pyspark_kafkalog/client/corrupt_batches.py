"""Skips corrupt batches (``onCorruptBatch=skip``): a `Detour` fetches again over a new connection. A corrupt
entry with a sound header costs its own offsets; any other everything up to the next sound entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Generic, TypeVar

import msgspec

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge, OffsetOutOfRange
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.message_set import (
    AbortedTransactions,
    ExpectedOffsets,
    entry_at,
    first_offset,
    first_offset_at,
    is_sound,
    next_sound,
)
from pyspark_kafkalog.types import TopicPartition

log = logging.getLogger(__name__)
T = TypeVar("T")

CORRUPT = (CorruptMessage, MessageTooLarge)
"""Decoding errors after which a batch may be skipped; a missing codec is not one."""

Decode = Callable[[memoryview, int, int, AbortedTransactions, ExpectedOffsets, int], tuple[Iterable[T], int]]
"""(bytes, start, end, aborted transactions, expected offsets, broker id) to the entry's records in
``[start, end)`` and the next offset; raises `CORRUPT`."""


class Detour(msgspec.Struct, Generic[T], frozen=True):
    """*Not thread-safe: belongs to one reader*, and uses its cluster."""

    cluster: Cluster
    tp: TopicPartition
    config: ConsumerConfig
    poll_timeout_ms: int
    decode: Decode[T]
    on_skip: Callable[[int, int], object]  # called with each skipped range of offsets ``[start, end)``

    def around(
        self, start: int, end: int, cause: KafkaError, *, follows: bool = False
    ) -> Generator[T, None, int]:
        """Yield the records of ``[start, end)`` up to and past one corrupt entry, if there still is one;
        return where to continue. ``follows``: an entry ended at ``start``.
        """
        log.info("%s: reading again from offset %d over a new connection: %s", self.tp, start, cause)
        self.cluster.close()
        position = start
        try:
            fetched = self._fetched_near(position, end)
        except CORRUPT as e:
            # The broker itself cannot read it.
            return self._skip(position, self._next_by_offset(position, end), e)
        data, at = fetched.data, 0
        follows = follows and fetched.offset == start
        expected = ExpectedOffsets.of_answer(fetched.offset, fetched.high_watermark, follows=follows)
        aborted = AbortedTransactions(fetched.aborted)
        while position < end:
            frame = entry_at(data, at)
            somewhere = _from_lowest(expected, position)
            if frame is None and position > start and next_sound(data, at, somewhere) is None:
                break  # perhaps cut by the end of the response; the next one begins with it
            try:
                if frame is None:
                    raise cause
                self._check_next(data, frame, position, expected)
                piece = data[frame.position : frame.end]
                items, position_after = self.decode(
                    piece, position, end, aborted, expected, fetched.broker_id
                )
            except CORRUPT as e:
                after, found = self._after_corrupt(fetched, at, position, end, expected)
                if after > position:
                    position = self._skip(position, min(after, end), e)
                if found is None or fetched.aborted:
                    # If it was a transaction marker, the next response lists the transaction's state.
                    return position
                expected, at = ExpectedOffsets(0, position, expected.below), found.position
                continue
            yield from items
            position = max(position, position_after)
            expected, at = expected.after(frame.last_offset), frame.end
        if position == start:
            raise cause
        return position

    def _skip(self, start: int, end: int, error: KafkaError) -> int:
        text = "%s: offsets [%d, %d) are skipped as corrupt (onCorruptBatch=skip): %s"
        log.warning(text, self.tp, start, end, error)
        self.on_skip(start, end)
        return end

    def _check_next(self, data: memoryview, frame: Frame, position: int, expected: ExpectedOffsets) -> None:
        """Refuse an entry that overlaps the next one after a gap: its own offset is damaged."""
        following = first_offset_at(data, frame.end)
        if following is None or following > frame.last_offset or following < expected.lowest:
            return
        if first_offset(data, frame) > position:
            raise expected.after(frame.last_offset).refuse(following, following)

    def _after_corrupt(
        self, fetched: Fetched, at: int, position: int, end: int, expected: ExpectedOffsets
    ) -> tuple[int, Frame | None]:
        data, somewhere = fetched.data, _from_lowest(expected, position)
        frame = entry_at(data, at)
        if frame is not None and is_sound(data, frame, expected):
            after = frame.last_offset + 1
            return after, next_sound(data, at, _from_lowest(expected, after))
        found = next_sound(data, at, somewhere)
        if found is not None:
            return max(position, first_offset(data, found)), found
        limit = self.config.fetch_max_bytes
        if at == 0 and frame is None and len(data) >= limit:
            raise CorruptMessage(
                f"{self.tp}: the entry at offset {position} is larger than fetch.max.bytes, {limit}, or "
                "has a damaged length"
            )
        if at > 0 or len(data) < limit:
            try:
                more = self._fetched(position, end, limit)
                found = _first_sound(more.data, _from_lowest(expected, position + 1))
            except CORRUPT:
                found = None
            if found is not None:
                return first_offset(more.data, found), None
        return self._next_by_offset(position, end), None

    def _next_by_offset(self, position: int, end: int) -> int:
        """First offset of the next sound entry, or ``end``: doubling steps, then bisection."""
        failed, step = position, 1
        while failed < end - 1:
            asked = min(position + step, end - 1)
            found = self._sound_from(asked, position, end)
            if found is not None:
                return self._between(failed, found, position, end)
            failed, step = asked, 2 * step
        return end

    def _between(self, failed: int, found: int, position: int, end: int) -> int:
        while found - failed > 1:
            middle = (failed + found) // 2
            earlier = self._sound_from(middle, position, end)
            if earlier is not None and earlier < found:
                found = earlier
            else:
                failed = middle
        return found

    def _sound_from(self, offset: int, position: int, end: int) -> int | None:
        try:
            fetched = self._fetched(offset, end)
        except CORRUPT:
            return None
        frame = _first_sound(fetched.data, _from_lowest(fetched.expected, position + 1))
        return None if frame is None else first_offset(fetched.data, frame)

    def _fetched_near(self, offset: int, end: int) -> Fetched:
        """The response to a fetch at ``offset`` or, if the broker refuses that, at the entry before."""
        try:
            return self._fetched(offset, end)
        except CORRUPT as e:
            try:
                return self._fetched(offset - 1, end)
            except (*CORRUPT, OffsetOutOfRange):
                raise e from None

    def _fetched(self, offset: int, end: int, size: int | None = None) -> Fetched:
        config = self.config if size is None else replace(self.config, max_partition_fetch_bytes=size)
        last, limit = max(end, offset + 1), self.poll_timeout_ms
        fetcher = PartitionFetcher(
            self.cluster, self.tp, offset, last, config=config, poll_timeout_ms=limit, for_corrupt=True
        )
        with closing(fetcher):
            return next(fetcher)


def _from_lowest(expected: ExpectedOffsets, lowest: int) -> ExpectedOffsets:
    """Bounds for an entry anywhere after a corrupt one."""
    return ExpectedOffsets(lowest, lowest, expected.below)


def _first_sound(data: memoryview, expected: ExpectedOffsets) -> Frame | None:
    frame = entry_at(data, 0)
    return frame if frame is not None and is_sound(data, frame, expected) else next_sound(data, 0, expected)
