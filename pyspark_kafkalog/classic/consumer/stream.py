"""The messages of a fetch response of either wire, and the stream of them that one thread reads."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats import message_set, v07
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.formats.transactions import AbortedTransactions
from pyspark_kafkalog.formats.v07 import MessageAndOffset, V07Format
from pyspark_kafkalog.types import Record, TopicPartition
from pyspark_kafkalog.zookeeper.paths import (
    BLACK_LIST,
    WHITE_LIST,
    ConsumerSubscription,
    PartitionKey,
    topic_regex,
)

_LENGTH_BYTES = 4
_BATCH_START_BYTES = 12


class SetReader(Protocol):
    """Reads one generation's bytes. Pure; ``offset`` is the requested one."""

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        """Payloads, each with the next offset."""
        ...

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        """The messages with all fields of the generation, entry by entry: its codec, and its messages."""
        ...

    def end(self, data: memoryview, offset: int) -> int:
        """The offset after the whole entries in ``data``; ``offset`` if there is none."""
        ...

    def first_size(self, data: memoryview) -> int | None:
        """The first entry's claimed size in bytes; None while its length is incomplete."""
        ...


class V07Sets:
    """*Thread-safe: immutable.* Sets of 0.7: they begin at the requested offset."""

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        return v07.messages(data, offset, max_bytes=max_bytes)

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        form, position = V07Format(), 0
        for entry in v07.entries(data, offset):
            frame = form.frame_at(data, position, entry.offset)
            if frame is None:
                return
            yield entry.codec, form.records(data, frame, max_bytes=max_bytes)
            position = entry.end

    def end(self, data: memoryview, offset: int) -> int:
        for entry in v07.entries(data, offset):
            offset = entry.next_offset
        return offset

    def first_size(self, data: memoryview) -> int | None:
        if len(data) < _LENGTH_BYTES:
            return None
        return _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)


class BatchSets:
    """*Thread-safe: immutable.* Sets since 0.8: messages of v0 and v1 and record batches, in any
    order. The first entry may begin before the requested offset, and ends at or after it.

    Control records are skipped, and the records of aborted transactions if they are told, so the next offset
    may be beyond the last message: see `end`. It stops before an entry with unexpected offsets, for which the
    other methods raise.
    """

    def __init__(self, high_watermark: int = -1, aborted: Sequence[tuple[int, int]] | None = None) -> None:
        """``high_watermark`` is above all offsets; -1 if unknown. ``aborted`` is what the response lists,
        (producer id, first offset); None: all records.
        """
        self._high_watermark, self._aborted = high_watermark, aborted

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        for _, records in self.records(data, offset, max_bytes):
            for record in records:
                yield MessageAndOffset(memoryview(record.value or b""), record.next_offset)

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        return message_set.coded_records(
            data,
            start_offset=offset,
            max_bytes=max_bytes,
            expected=self._expected(offset),
            aborted=None if self._aborted is None else AbortedTransactions(self._aborted),
        )

    def end(self, data: memoryview, offset: int) -> int:
        return message_set.next_offset_after(data, offset, self._expected(offset))

    def _expected(self, offset: int) -> ExpectedOffsets:
        return ExpectedOffsets.of_answer(offset, self._high_watermark)

    def first_size(self, data: memoryview) -> int | None:
        if len(data) < _BATCH_START_BYTES:
            return None
        length = int.from_bytes(
            data[_BATCH_START_BYTES - _LENGTH_BYTES : _BATCH_START_BYTES], "big", signed=True
        )
        return _BATCH_START_BYTES + length


class MessageSet:
    """*Thread-safe: immutable.* One partition's part of a fetch response; may be iterated repeatedly.

    Iterating gives each payload with the offset to continue at. Within a compressed set
    of 0.7 that is the set's own offset for all messages but the last: a reader that stops there gets the
    whole set again. ``error`` is why there is nothing; iterating then raises it.

    Payloads are views of the response: keeping one keeps the whole response in memory.
    A null value of today's wire reads as empty here; `records` distinguishes them.
    """

    __slots__ = ("_max_bytes", "_reader", "data", "error", "offset", "tp")

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        data: memoryview,
        reader: SetReader,
        *,
        max_bytes: int,
        error: KafkaError | None = None,
    ) -> None:
        self.tp, self.offset, self.data, self.error = tp, offset, data, error
        self._reader, self._max_bytes = reader, max_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the whole entries, where the next fetch begins. It may be beyond the last message.
        No checksum is verified.
        """
        return self._reader.end(self.data, self.offset)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """The messages, checksums verified; a cut entry at the end is skipped.

        Raises:
            KafkaError: ``error``.
            CorruptMessage: a length, magic, codec or checksum is wrong, or compressed data is damaged.
            MessageTooLarge: a compressed set holds more than ``max.decompressed.bytes``.
        """
        if self.error is not None:
            raise self.error
        return self._reader.messages(self.data, self.offset, self._max_bytes)

    def records(self) -> Iterator[Record]:
        """The messages with offset, key, time and headers if the wire has them. Raises as iterating."""
        return (record for _, record in self.coded_records())

    def coded_records(self) -> Iterator[tuple[Codec, Record]]:
        """`records`, each with the codec of its entry."""
        if self.error is not None:
            raise self.error
        entries = self._reader.records(self.data, self.offset, self._max_bytes)
        return ((codec, record) for codec, found in entries for record in found)


class ConsumerTimeout(KafkaError):
    """No message came within ``consumer.timeout.ms``. The stream can be read further."""


class MessageMetadata(NamedTuple):
    """A message's origin. ``record`` has the other fields of the wire: key, time, headers.

    ``next_offset`` is where a consumer continues after it; within a compressed set of 0.7 that
    is the set's own offset until its last message. ``codec`` is that of its entry.
    """

    topic: str
    broker: int
    partition: int
    offset: int
    next_offset: int
    record: Record
    codec: Codec


Chunk: TypeAlias = MessageSet | KafkaError | int
"""From a fetcher: messages, an error, or an offset to continue at."""


class OwnedPartition:
    """A partition of this consumer, from its claim to its release, with its positions.

    `fetch_offset` is written only by the fetcher's thread, None until the first offset is known; the other
    two by the stream, under its lock. Any thread may read them.
    """

    __slots__ = (
        "broker", "committed", "done", "failed", "fetch_offset", "given", "key", "revoked", "stream",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, broker: int, stream: MessageStream, offset: int | None) -> None:
        self.key, self.broker, self.stream = key, broker, stream
        self.fetch_offset = offset
        self.done = offset
        """The offset after the processed messages."""
        self.given = offset
        """The offset after the delivered messages."""
        self.committed = offset
        self.revoked = False
        self.failed = False
        """The fetcher has put an error into the stream."""


class MessageStream:
    """*Thread-safe, but meant for one reader.* Iterates over (message, `MessageMetadata`) and waits for more.

    A message counts as processed when the next one is requested. Messages of a revoked partition are not
    delivered, and none at all while ``may_give`` returns False: so no other consumer processes the same ones.
    Owns the queue of fetched sets, guarded by `_changed`.
    """

    def __init__(
        self,
        number: int,
        *,
        timeout_ms: int = -1,
        max_chunks: int = 10,
        may_give: Callable[[], bool] = lambda: True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``number`` counts a consumer's streams of a topic from 0; ``timeout_ms`` -1 is no limit."""
        self.number = number
        self.wanted: Callable[[], object] = lambda: None
        """Called when there is room, with the lock held: it must return at once."""
        self._timeout_seconds = None if timeout_ms < 0 else timeout_ms / 1000
        self._max_chunks, self._may_give, self._clock = max_chunks, may_give, clock
        self._changed = threading.Condition()
        self._chunks: deque[tuple[OwnedPartition, Chunk]] = deque()
        self._records: Iterator[tuple[Codec, Record]] | None = None
        """The rest of the first set in the queue."""
        self._in_hand: OwnedPartition | None = None
        """The partition of the reader's current message."""
        self._reader = -1
        self._closed = False

    def __iter__(self) -> MessageStream:
        return self

    def __next__(self) -> tuple[bytes, MessageMetadata]:
        """The next message; iteration ends when the connector is shut down.

        Raises:
            ConsumerTimeout: none came in time.
            OffsetOutOfRange: the log does not hold the group's offset, and ``autooffset.reset`` is none.
            CorruptMessage, MessageTooLarge: the log cannot be read there. Like OffsetOutOfRange it is raised
                at each call until the partition has another owner: nothing is skipped silently.
        """
        with self._changed:
            self._mark_processed()
            self._reader = threading.get_ident()
            deadline = None
            while not self._closed:
                if self._may_give() and (found := self._take()) is not None:
                    return found
                left = None
                if self._timeout_seconds is not None:
                    now = self._clock.monotonic()
                    deadline = now + self._timeout_seconds if deadline is None else deadline
                    left = deadline - now
                    if left <= 0:
                        raise ConsumerTimeout(f"no message within {self._timeout_seconds * 1000:.0f} ms")
                self._changed.wait(left)
            raise StopIteration

    def room(self) -> bool:
        """Whether the queue has room."""
        return len(self._chunks) < self._max_chunks

    def put(self, partition: OwnedPartition, chunk: Chunk) -> None:
        """For the fetcher: add the next chunk. Ignored for a revoked partition."""
        with self._changed:
            if not partition.revoked and not self._closed:
                self._chunks.append((partition, chunk))
                self._changed.notify_all()

    def revoke(self, partition: OwnedPartition, patience_seconds: float = 0.0) -> None:
        """Deliver nothing more of a partition.

        If the reader is processing a message of it, waits at most ``patience_seconds`` until it asks for the
        next one.
        """
        with self._changed:
            partition.revoked = True
            if self._chunks and self._chunks[0][0] is partition:
                self._records = None
            self._chunks = deque(chunk for chunk in self._chunks if chunk[0] is not partition)
            if self._reader != threading.get_ident():
                self._changed.wait_for(lambda: self._in_hand is not partition, patience_seconds)
            self.wanted()

    def mark_processed(self) -> None:
        """Mark the last message as processed, if the calling thread is the reader."""
        with self._changed:
            if self._reader == threading.get_ident():
                self._mark_processed()

    def wake(self) -> None:
        """``may_give`` may have changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the iteration; queued messages are dropped."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._records = None
            self._changed.notify_all()

    def _mark_processed(self) -> None:
        partition, self._in_hand = self._in_hand, None
        if partition is not None:
            partition.done = partition.given
            self._changed.notify_all()

    def _take(self) -> tuple[bytes, MessageMetadata] | None:
        while self._chunks:
            partition, chunk = self._chunks[0]
            if isinstance(chunk, KafkaError):
                raise chunk
            if isinstance(chunk, int):
                partition.given = partition.done = chunk
            elif (found := self._next_of(partition, chunk)) is not None:
                key, (codec, record) = partition.key, found
                partition.given, self._in_hand = record.next_offset, partition
                where = MessageMetadata(
                    key.topic, partition.broker, key.number, record.offset, record.next_offset, record, codec
                )
                return record.value or b"", where
            else:
                # May be beyond the last message, for example after control records.
                partition.given = partition.done = chunk.next_offset
            self._records = None
            self._chunks.popleft()
            self.wanted()
        return None

    def _next_of(self, partition: OwnedPartition, messages: MessageSet) -> tuple[Codec, Record] | None:
        try:
            if self._records is None:
                self._records = messages.coded_records()
            return next(self._records, None)
        except KafkaError as e:
            self._records, self._chunks[0] = None, (partition, e)
            raise


class TopicFilter:
    """*Thread-safe: immutable.* An expression for topics: `Whitelist` or `Blacklist`.

    Python regular expressions, matched against the whole name; a comma means "or", blanks and quotes around
    it are ignored, as in 0.7. Java's expressions differ in rare forms only; all consumers of one group must
    interpret theirs the same.
    """

    _pattern: str

    def __init__(self, expression: str) -> None:
        """Raises `InvalidConfig` for an invalid regular expression."""
        self.expression = expression
        self.allows("")

    def allows(self, topic: str) -> bool:
        """Whether ``topic`` is consumed."""
        return bool(self.subscription(1).chosen([topic]))

    @property
    def regex(self) -> re.Pattern[str]:
        """What matches the whole names of the topics that are consumed."""
        matching = topic_regex(self.expression).pattern
        return re.compile(matching if self._pattern == WHITE_LIST else rf"(?!(?:{matching})\Z)[\s\S]*")

    def subscription(self, streams: int) -> ConsumerSubscription:
        """The subscription to register. Raises `InvalidConfig` for less than one stream."""
        return ConsumerSubscription({self.expression: streams}, self._pattern)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    """The topics that match."""

    _pattern = WHITE_LIST


class Blacklist(TopicFilter):
    """The topics that do not."""

    _pattern = BLACK_LIST
