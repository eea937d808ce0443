"""The stream that one thread of a consumer reads: messages of the partitions it owns at the moment."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from pyspark_kafkalog.classic.consumer.fetched_messages import MessageSet
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import Record
from pyspark_kafkalog.zookeeper.paths import BLACK_LIST, WHITE_LIST, PartitionKey, Subscription


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

    def subscription(self, streams: int) -> Subscription:
        """The subscription to register. Raises `InvalidConfig` for less than one stream."""
        return Subscription({self.expression: streams}, self._pattern)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    """The topics that match."""

    _pattern = WHITE_LIST


class Blacklist(TopicFilter):
    """The topics that do not."""

    _pattern = BLACK_LIST
