"""Messages of a fetch response, on either wire, and the stream of them read by one thread."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats import message_set, v07
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import AbortedTransactions, ExpectedOffsets
from pyspark_kafkalog.formats.v07 import MessageAndOffset, V07Format
from pyspark_kafkalog.types import Record, TopicPartition
from pyspark_kafkalog.zookeeper.paths import (
    BLACK_LIST,
    WHITE_LIST,
    ConsumerSubscription,
    PartitionKey,
)
from pyspark_kafkalog.zookeeper.topic_filters import topic_regex

_LENGTH_BYTES = 4
_BATCH_START_BYTES = 12


class V07Sets:
    """Reads message sets of 0.7, which begin at the requested ``offset``. Pure."""

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        return v07.messages(data, offset, max_bytes=max_bytes)

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        """For each entry its codec and its messages, with all fields."""
        form, position = V07Format(), 0
        for entry in v07.entries(data, offset):
            frame = form.frame_at(data, position, entry.offset)
            if frame is None:
                return
            yield entry.codec, form.records(data, frame, max_bytes=max_bytes)
            position = entry.end

    def end(self, data: memoryview, offset: int) -> int:
        """The offset after the whole entries in ``data``, else ``offset``."""
        for entry in v07.entries(data, offset):
            offset = entry.next_offset
        return offset

    def first_size(self, data: memoryview) -> int | None:
        """What the first entry claims, in bytes; None if its length is incomplete."""
        if len(data) < _LENGTH_BYTES:
            return None
        return _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)


class BatchSets:
    """*Thread-safe: immutable.* Message sets v0 and v1 and record batches, in any order.

    The first entry may begin before the requested offset. Skips control records, and records of aborted
    transactions if ``aborted`` is given, so `end` may be beyond the last message. `end` stops before an entry
    with unexpected offsets; the other methods raise.
    """

    def __init__(self, high_watermark: int = -1, aborted: Sequence[tuple[int, int]] | None = None) -> None:
        """``high_watermark`` is above all offsets; -1 if unknown. ``aborted``: the response's (producer id,
        first offset) pairs; None returns all records.
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


SetReader = V07Sets | BatchSets


class MessageSet(msgspec.Struct, frozen=True, eq=False):
    """*Thread-safe: immutable.* One partition's part of a fetch response; may be iterated repeatedly.

    Yields each payload with the offset to continue at. In a compressed set of 0.7 that is the set's own
    offset until its last message, so stopping earlier means reading the whole set again. If ``error`` is set,
    iteration raises it.

    Payloads are views of the response: keeping one keeps the whole response in memory. Null values read as
    empty here, as None in `records`.
    """

    tp: TopicPartition
    offset: int
    data: memoryview
    reader: SetReader
    max_bytes: int
    error: KafkaError | None = None

    @property
    def next_offset(self) -> int:
        """After the whole entries, perhaps beyond the last message. Verifies no checksum."""
        return self.reader.end(self.data, self.offset)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """Verifies checksums; skips a truncated entry at the end.

        Raises:
            KafkaError: ``error``.
            CorruptMessage: a wrong length, magic, codec or checksum, or damaged compressed data.
            MessageTooLarge: a compressed set exceeds ``max.decompressed.bytes``.
        """
        if self.error is not None:
            raise self.error
        return self.reader.messages(self.data, self.offset, self.max_bytes)

    def records(self) -> Iterator[Record]:
        """Messages with offset and, if the wire has them, key, time and headers. Raises as iteration."""
        return (record for _, record in self.coded_records())

    def coded_records(self) -> Iterator[tuple[Codec, Record]]:
        if self.error is not None:
            raise self.error
        entries = self.reader.records(self.data, self.offset, self.max_bytes)
        return ((codec, record) for codec, found in entries for record in found)


class ConsumerTimeout(KafkaError):
    """None within ``consumer.timeout.ms``. The stream can be read further."""


class MessageMetadata(NamedTuple):
    """A message's origin and, in ``record``, its other fields: key, time, headers.

    ``next_offset`` is where a consumer continues: in a compressed set of 0.7 its own offset until its end.
    """

    topic: str
    broker: int
    partition: int
    offset: int
    next_offset: int
    record: Record
    codec: Codec


Chunk: TypeAlias = MessageSet | KafkaError | int
"""From a fetcher: messages, a final error, or an offset to continue at."""


class OwnedPartition:
    """Positions of a partition from claim to release; any thread may read them. The fetcher's thread writes
    `fetch_offset`, None until known; the stream the others, under its lock.
    """

    def __init__(self, key: PartitionKey, broker: int, stream: MessageStream, offset: int | None) -> None:
        self.key, self.broker, self.stream = key, broker, stream
        self.fetch_offset = offset
        self.done = offset  # offset after the processed messages
        self.given = offset  # offset after the delivered messages
        self.committed = offset
        self.revoked = False
        self.failed = False


class MessageStream:
    """*Thread-safe, but meant for one reader.* Yields (message, `MessageMetadata`) and waits for more.

    A message counts as processed when the next one is requested. Delivers nothing of revoked partitions, and
    nothing at all while ``may_give`` returns False, so that no other consumer processes the same messages.
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
        """``number`` counts a topic's streams of this consumer from 0; ``timeout_ms`` -1 is no limit."""
        self.number = number
        self.wanted: Callable[[], object] = lambda: None
        """Called with the lock held when the queue has room; must return at once."""
        self._timeout_seconds = None if timeout_ms < 0 else timeout_ms / 1000
        self._max_chunks, self._may_give, self._clock = max_chunks, may_give, clock
        self._changed = threading.Condition()
        self._chunks: deque[tuple[OwnedPartition, Chunk]] = deque()
        self._records: Iterator[tuple[Codec, Record]] | None = None
        self._in_hand: OwnedPartition | None = None
        self._reader = -1
        self._closed = False

    def __iter__(self) -> MessageStream:
        return self

    def __next__(self) -> tuple[bytes, MessageMetadata]:
        """The next message; iteration ends when the connector is shut down.

        Raises:
            ConsumerTimeout: none came in time.
            OffsetOutOfRange: the group's offset is not in the log, and ``autooffset.reset`` is none.
            CorruptMessage, MessageTooLarge: unreadable data. Like OffsetOutOfRange it is raised by each call
                until the partition has another owner, so nothing is skipped silently.
        """
        with self._changed:
            self._mark_processed()
            self._reader = threading.get_ident()
            deadline = None
            while not self._closed:
                if self._may_give() and (message := self._take()) is not None:
                    return message
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
        return len(self._chunks) < self._max_chunks

    def put(self, partition: OwnedPartition, chunk: Chunk) -> None:
        with self._changed:
            if not partition.revoked and not self._closed:
                self._chunks.append((partition, chunk))
                self._changed.notify_all()

    def revoke(self, partition: OwnedPartition, patience_seconds: float = 0.0) -> None:
        """Waits up to ``patience_seconds`` for the reader to finish its message of the partition."""
        with self._changed:
            partition.revoked = True
            if self._chunks and self._chunks[0][0] is partition:
                self._records = None
            self._chunks = deque(chunk for chunk in self._chunks if chunk[0] is not partition)
            if self._reader != threading.get_ident():
                self._changed.wait_for(lambda: self._in_hand is not partition, patience_seconds)
            self.wanted()

    def mark_processed(self) -> None:
        """If the calling thread is the reader."""
        with self._changed:
            if self._reader == threading.get_ident():
                self._mark_processed()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
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
                # May be beyond the last message, for example because of control records.
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
    """*Thread-safe: immutable.* A topic expression: `Whitelist` or `Blacklist`.

    A regular expression for the whole name, as Java reads it, because all consumers of a group must agree.
    `InvalidConfig` for what is not supported: ``&&`` and ``[`` in a class, Unicode properties, flags but a
    leading ``(?i)`` or ``(?s)``. As in 0.7, a comma means "or"; blanks and quotes around it are ignored.
    """

    _pattern: str

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.allows("")

    def allows(self, topic: str) -> bool:
        return bool(self.subscription(1).chosen([topic]))

    @property
    def regex(self) -> re.Pattern[str]:
        matching = topic_regex(self.expression).pattern
        return re.compile(matching if self._pattern == WHITE_LIST else rf"(?!(?:{matching})\Z)[\s\S]*")

    def subscription(self, streams: int) -> ConsumerSubscription:
        return ConsumerSubscription({self.expression: streams}, self._pattern)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    _pattern = WHITE_LIST


class Blacklist(TopicFilter):
    _pattern = BLACK_LIST
