"""Logs of 0.7 as today's clients can read them: each entry as a record batch v2, offsets counting bytes.

Made anew for every fetch, in Python and in memory: there is no zero copy here. What one fetch may cost is
bounded by its `Allowance`, and what cannot be told as a batch is refused with a reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from broker.log.log import Log
from broker.log.retention import SegmentFacts
from broker.log.validation import MAX_DECOMPRESSED_BYTES
from broker.metrics import Metrics
from broker.server.allowance import Allowance
from broker.server.boundaries import Boundaries, read_bytes
from broker.server.epochs import LEADER_EPOCH
from broker.server.made_entries import MadeEntries
from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    ServerError,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.batch import MAGIC
from pyspark_kafkalog.formats.convert import ConvertedEntry, batch_of_entry_in_steps
from pyspark_kafkalog.formats.v07 import entry_header
from pyspark_kafkalog.steps import Steps

_READ_BYTES = 64 << 10
"""One read of the log; more where an entry is longer."""

_UNTELLABLE = (CorruptMessage, InvalidRecord, MessageTooLarge, UnsupportedCompression)
"""What an entry may have about it that no batch can say."""

_MOST_NOTES = 1000
_STEP_ENTRIES = 16

_log = logging.getLogger(__name__)


class View07:
    """*Thread-safe.* Makes the views of a listener: called with a log and a request's allowance.

    It has what they share: where entries begin, what is counted, and which entries the log was told of.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.boundaries = Boundaries()
        self.metrics = metrics
        self._noted: set[tuple[str, int]] = set()

    def __call__(self, log: Log, allowance: Allowance) -> LogAsBatches:
        return LogAsBatches(log, allowance, self)

    def refused(self, log: Log, offset: int, reason: KafkaError) -> ServerError:
        """The error for an entry that cannot be told; the first time it is a warning in the broker's log.

        CORRUPT_MESSAGE would be truer of some, but kafka-python takes it for one that passes, and asks again
        without a word to its user.
        """
        partition = log.topic_partition
        text = f"{partition}: the entry at offset {offset} cannot be given as a record batch: {reason}"
        place = (str(log.path), offset)
        if place not in self._noted:
            if len(self._noted) >= _MOST_NOTES:
                self._noted.clear()
            self._noted.add(place)
            _log.warning("%s. Today's clients stop here; to go on they must seek behind it", text)
        return ServerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)


class LogAsBatches:
    """*Not thread-safe: one request's.* A log of 0.7 as a `ReadableLog` of today's."""

    def __init__(self, log: Log, allowance: Allowance, shared: View07) -> None:
        self._log = log
        self._allowance = allowance
        self._shared = shared

    @property
    def start_offset(self) -> int:
        """The byte at which the oldest segment begins."""
        return self._log.start_offset

    @property
    def readable_end(self) -> int:
        """The end of what is on the disk, as for readers of 0.7."""
        return self._log.readable_end

    @property
    def last_stable_offset(self) -> int:
        """The same: 0.7 has no transactions."""
        return self._log.readable_end

    def read_in_steps(
        self,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        committed_only: bool = False,  # noqa: ARG002 - all is committed
    ) -> Steps[MadeEntries]:
        """Batches from the one with ``offset`` on, at most ``max_bytes``; the first may exceed that if
        ``at_least_one``. Empty where the request's allowance is spent: the client is to ask again.

        Raises:
            OffsetOutOfRange: not within ``[start_offset, readable_end]``.
            ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT: the entry there cannot be told as a batch.
            StorageError: the disk failed.
        """
        log, allowance, boundaries = self._log, self._allowance, self._shared.boundaries
        end = log.readable_end
        log.read(offset, 0, at_least_one=False).close()  # whether it can be read there at all
        boundaries.note(log, end)
        if offset >= end or not (max_bytes > 0 or at_least_one):
            return _made([])
        try:
            position = boundaries.find(log, offset, allowance)
        except CorruptMessage as e:
            raise self._shared.refused(log, offset, e) from None
        if position is None:
            return _made([])
        return _made((yield from self._batches(position, end, max_bytes, at_least_one)))

    def offset_for_timestamp_in_steps(self, timestamp_ms: int) -> Steps[tuple[int, int] | None]:
        """When the first segment that was changed at the time or later was last changed, and its start: what
        was appended since then lies behind it.
        """
        for segment in self._log.facts():
            if segment.age_timestamp >= timestamp_ms:
                return segment.age_timestamp, segment.base_offset
        yield from ()
        return None

    def max_timestamp_in_steps(self) -> Steps[tuple[int, int] | None]:
        """None: no record has a time."""
        yield from ()
        return None

    def facts(self) -> list[SegmentFacts]:
        """Its segments'."""
        return self._log.facts()

    def _batches(self, position: int, end: int, max_bytes: int, at_least_one: bool) -> Steps[list[bytes]]:
        found: list[bytes] = []
        size = count = 0
        try:
            for entry in self._entries(position, end):
                converted = yield from self._convert(entry, position)
                if size + len(converted.batch) > max_bytes and not (at_least_one and not found):
                    break
                found.append(converted.batch)
                size += len(converted.batch)
                count += converted.message_count
                position += len(entry)
                if size >= max_bytes or self._allowance.spent:
                    break
                if not len(found) % _STEP_ENTRIES:
                    yield None
        except _UNTELLABLE as e:
            if not found:
                raise self._shared.refused(self._log, position, e) from None
            # What comes before it goes out first: the client is told when it asks for the rest.
        self._shared.boundaries.note(self._log, position)
        self._shared.metrics.converted_messages.inc(count)
        self._shared.metrics.converted_bytes.inc(size)
        return found

    def _convert(self, entry: memoryview, offset: int) -> Steps[ConvertedEntry]:
        converted = yield from batch_of_entry_in_steps(
            entry, offset, max_bytes=MAX_DECOMPRESSED_BYTES, leader_epoch=LEADER_EPOCH
        )
        self._allowance.take(max(len(entry), len(converted.batch), converted.block_bytes))
        return converted

    def _entries(self, position: int, end: int) -> Iterator[memoryview]:
        """The entries from ``position`` on, where one begins, each whole; more of the log is read as needed.

        Raises:
            CorruptMessage: the log does not go on with whole entries.
            MessageTooLarge: an entry is so long that it is not read into memory.
            OffsetOutOfRange, StorageError: as `read`.
        """
        wanted = _READ_BYTES
        while position < end:
            data = memoryview(read_bytes(self._log, position, wanted))
            pos = 0
            while (found := entry_header(data, pos)) is not None and found[1] <= len(data):
                yield data[pos : found[1]]
                pos = found[1]
            if pos:
                position, wanted = position + pos, _READ_BYTES
            elif found is None or len(data) < wanted:
                raise CorruptMessage("it is cut short")
            elif found[1] > MAX_DECOMPRESSED_BYTES:
                raise MessageTooLarge(f"it has {found[1]} bytes; the limit is {MAX_DECOMPRESSED_BYTES}")
            else:
                wanted = found[1]


def _made(batches: list[bytes]) -> MadeEntries:
    return MadeEntries(b"".join(batches), MAGIC)
