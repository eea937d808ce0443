"""The way around a corrupt batch of Kafka 0.8 onwards, for readers that may leave it out.

Whoever reads goes as far as it can, and asks a `Detour` from there: it fetches once more by a new connection,
gives what can be read entry by entry, and leaves out the entries that are corrupt. Then all goes on as ever.
What is left out is an entry's own offsets where its header checks out; else all up to the next entry that
checks out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.columnar.answers import AbortedTransactions
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge, OffsetOutOfRange
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.message_set import (
    ExpectedOffsets,
    entry_at,
    first_offset,
    is_sound,
    next_offset_at,
    next_sound,
)
from pyspark_kafkalog.types import TopicPartition

log = logging.getLogger(__name__)
T = TypeVar("T")

CORRUPT = (CorruptMessage, MessageTooLarge)
"""What a batch that may be left out raises when it is decoded. A codec that is missing here is none of it."""

Decode = Callable[[memoryview, int, int, AbortedTransactions, ExpectedOffsets, int], tuple[Iterable[T], int]]
"""What one entry holds of the offsets ``[start, end)``, and where reading goes on after it; raises `CORRUPT`.

Given: the entry's bytes, start, end, the aborted transactions, its expected, the id of the broker.
"""


@dataclass(frozen=True, slots=True)
class Detour(Generic[T]):
    """*Not thread-safe: belongs to one reader*, and uses its cluster."""

    cluster: Cluster
    tp: TopicPartition
    config: ConsumerConfig
    poll_timeout_ms: int
    decode: Decode[T]
    on_skip: Callable[[int, int], object]
    """Told of each range of offsets ``[start, end)`` that is left out."""

    def around(
        self, start: int, end: int, cause: KafkaError, *, follows: bool = False
    ) -> Generator[T, None, int]:
        """What can be read of ``[start, end)`` up to the corrupt entry, which is left out; its value is where
        reading goes on. Nothing is left out where nothing is corrupt this time. ``follows``: an entry ended
        before ``start``, so none begins earlier.

        Raises:
            KafkaError: the broker could not be read; ``cause`` where neither that nor the entry is to blame.
        """
        log.info("%s: reading on from offset %d once more, by a new connection: %s", self.tp, start, cause)
        self.cluster.close()
        position = start
        try:
            fetched = self._fetched_near(position, end)
        except CORRUPT as e:
            # The broker itself cannot make it out.
            return self._skip(position, self._next_by_offset(position, end), e)
        data, at = fetched.data, 0
        follows = follows and fetched.offset == start
        expected = ExpectedOffsets.of_answer(fetched.offset, fetched.high_watermark, follows=follows)
        aborted = AbortedTransactions(fetched.aborted)
        while position < end:
            frame = entry_at(data, at)
            somewhere = _somewhere(expected, position)
            if frame is None and position > start and next_sound(data, at, somewhere) is None:
                break  # perhaps only cut off by the end of the answer: the next one begins with it
            try:
                if frame is None:
                    raise cause
                self._check_next(data, frame, position, expected)
                piece = data[frame.position : frame.end]
                items, position_after = self.decode(
                    piece, position, end, aborted, expected, fetched.broker_id
                )
            except CORRUPT as e:
                behind, found = self._behind(fetched, at, position, end, expected)
                if behind > position:
                    position = self._skip(position, min(behind, end), e)
                if found is None or fetched.aborted:
                    # Had it been the end of a transaction, the next answer knows what that was.
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
        log.warning(
            "%s: offsets [%d, %d) are left out as corrupt (onCorruptBatch=skip): %s",
            self.tp,
            start,
            end,
            error,
        )
        self.on_skip(start, end)
        return end

    def _check_next(self, data: memoryview, frame: Frame, position: int, expected: ExpectedOffsets) -> None:
        """Of two entries that overlap, both perhaps with right checksums, one has a damaged offset.

        Raises:
            CorruptMessage: it is this one: there is a gap before it.
        """
        following = next_offset_at(data, frame.end)
        if following is None or following > frame.last_offset or following < expected.lowest:
            return
        if first_offset(data, frame) > position:
            raise expected.after(frame.last_offset).refuse(following, following)

    def _behind(
        self, fetched: Fetched, at: int, position: int, end: int, expected: ExpectedOffsets
    ) -> tuple[int, Frame | None]:
        """Where reading goes on behind the corrupt entry at byte ``at``, and the entry there, if the answer
        has it. That is ``position`` itself where the corrupt entry holds nothing from there on.

        Raises:
            CorruptMessage: an entry fills all that may be fetched, and is perhaps only too large.
        """
        data, somewhere = fetched.data, _somewhere(expected, position)
        frame = entry_at(data, at)
        if frame is not None and is_sound(data, frame, expected):
            after = frame.last_offset + 1
            return after, next_sound(data, at, _somewhere(expected, after))
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
                found = _first_sound(more.data, _somewhere(expected, position + 1))
            except CORRUPT:
                found = None
            if found is not None:
                return first_offset(more.data, found), None
        return self._next_by_offset(position, end), None

    def _next_by_offset(self, position: int, end: int) -> int:
        """The first offset of the next entry that checks out, asked for by offsets; ``end`` if none does.

        The steps double until one is found; then halves say which is the first.
        """
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
        """The first offset of the first entry above ``position`` that checks out in an answer to a fetch at
        ``offset``.
        """
        try:
            fetched = self._fetched(offset, end)
        except CORRUPT:
            return None
        frame = _first_sound(fetched.data, _somewhere(fetched.expected, position + 1))
        return None if frame is None else first_offset(fetched.data, frame)

    def _fetched_near(self, offset: int, end: int) -> Fetched:
        """An answer to a fetch at ``offset`` or, where the broker refuses that, from the entry before on."""
        try:
            return self._fetched(offset, end)
        except CORRUPT as e:
            try:
                return self._fetched(offset - 1, end)
            except (*CORRUPT, OffsetOutOfRange):
                raise e from None

    def _fetched(self, offset: int, end: int, size: int | None = None) -> Fetched:
        """One answer, as it is. Raises `CORRUPT` where the broker says so."""
        config = self.config if size is None else replace(self.config, max_partition_fetch_bytes=size)
        fetcher = PartitionFetcher(
            self.cluster,
            self.tp,
            offset,
            max(end, offset + 1),
            config=config,
            poll_timeout_ms=self.poll_timeout_ms,
            as_it_is=True,
        )
        try:
            return next(fetcher)
        finally:
            fetcher.close()


def _somewhere(expected: ExpectedOffsets, lowest: int) -> ExpectedOffsets:
    """The expected of an entry that comes anywhere behind a corrupt one."""
    return ExpectedOffsets(lowest, lowest, expected.below)


def _first_sound(data: memoryview, expected: ExpectedOffsets) -> Frame | None:
    frame = entry_at(data, 0)
    return frame if frame is not None and is_sound(data, frame, expected) else next_sound(data, 0, expected)
