"""Logs of 0.7 for clients of 0.8 and later: each entry becomes a record batch v2, offsets count bytes. Each
fetch converts in memory, within its `Allowance`. An entry without an equivalent batch is refused.
"""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES
from kafkalog_broker.log.file_slice import MemorySlice
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import SegmentFacts
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.log_access import Allowance
from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    ServerError,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.batch import MAGIC
from pyspark_kafkalog.formats.convert import ConvertedEntry, batch_of_entry
from pyspark_kafkalog.formats.v07 import MIN_ENTRY_BYTES, entry_at_byte, entry_header

_READ_BYTES = 64 << 10

_UNTELLABLE = (CorruptMessage, InvalidRecord, MessageTooLarge, UnsupportedCompression)

_MOST_NOTES = 1000
_STEP_ENTRIES = 16

_log = logging.getLogger(__name__)


class View07:
    """*Thread-safe.* Makes a listener's views; shares entry boundaries, metrics and the logged refusals."""

    def __init__(self, metrics: Metrics) -> None:
        self.boundaries = Boundaries()
        self.metrics = metrics
        self._noted: set[tuple[str, int]] = set()

    def __call__(self, log: Log, allowance: Allowance) -> LogAsBatches:
        return LogAsBatches(log, allowance, self)

    def refused(self, log: Log, offset: int, reason: KafkaError) -> ServerError:
        """Logs it the first time. Not CORRUPT_MESSAGE: kafka-python retries after it and tells nobody."""
        partition = log.topic_partition
        text = f"{partition}: the entry at offset {offset} cannot be given as a record batch: {reason}"
        place = (str(log.path), offset)
        if place not in self._noted:
            if len(self._noted) >= _MOST_NOTES:
                self._noted.clear()
            self._noted.add(place)
            _log.warning("%s. Today's clients stop here; to go on they must seek past it", text)
        return ServerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)


@dataclass(eq=False)
class LogAsBatches:
    """*Not thread-safe: one request's.* A log of 0.7 as a `ReadableLog`."""

    log: Log
    allowance: Allowance
    shared: View07

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def readable_end(self) -> int:
        return self.log.readable_end

    @property
    def last_stable_offset(self) -> int:
        return self.log.readable_end

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        committed_only: bool = False,  # noqa: ARG002 - all is committed
    ) -> MemorySlice:
        """As `ReadableLog.read`. Raises `ServerError` UNSUPPORTED_FOR_MESSAGE_FORMAT: no such batch."""
        log, allowance, boundaries = self.log, self.allowance, self.shared.boundaries
        end = log.readable_end
        log.read(offset, 0, at_least_one=False).close()  # checks the offset
        boundaries.note(log, end)
        if offset >= end or not (max_bytes > 0 or at_least_one):
            return _made([])
        try:
            position = boundaries.find(log, offset, allowance)
        except CorruptMessage as e:
            raise self.shared.refused(log, offset, e) from None
        if position is None:
            return _made([])
        return _made(self._batches(position, end, max_bytes, at_least_one))

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Time and start of the first segment modified at or after the time; later appends follow it."""
        for segment in self.log.facts():
            if segment.age_timestamp >= timestamp_ms:
                return segment.age_timestamp, segment.base_offset
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        return None

    def facts(self) -> list[SegmentFacts]:
        return self.log.facts()

    def _batches(self, position: int, end: int, max_bytes: int, at_least_one: bool) -> list[bytes]:
        found: list[bytes] = []
        size = count = 0
        try:
            for entry in self._entries(position, end):
                converted = self._convert(entry, position)
                if size + len(converted.batch) > max_bytes and not (at_least_one and not found):
                    break
                found.append(converted.batch)
                size += len(converted.batch)
                count += converted.message_count
                position += len(entry)
                if size >= max_bytes or self.allowance.spent:
                    break
        except _UNTELLABLE as e:
            if not found:
                raise self.shared.refused(self.log, position, e) from None
            # Return the entries before it; the client gets the error with its next request.
        self.shared.boundaries.note(self.log, position)
        self.shared.metrics.converted_messages.inc(count)
        self.shared.metrics.converted_bytes.inc(size)
        return found

    def _convert(self, entry: memoryview, offset: int) -> ConvertedEntry:
        converted = batch_of_entry(
            entry, offset, max_bytes=MAX_DECOMPRESSED_BYTES, leader_epoch=self.leader_epoch
        )
        self.allowance.take(max(len(entry), len(converted.batch), converted.block_bytes))
        return converted

    def _entries(self, position: int, end: int) -> Iterator[memoryview]:
        wanted = _READ_BYTES
        while position < end:
            data = memoryview(read_bytes(self.log, position, wanted))
            pos = 0
            while (found := entry_header(data, pos)) is not None and found[1] <= len(data):
                yield data[pos : found[1]]
                pos = found[1]
            if pos:
                position, wanted = position + pos, _READ_BYTES
            elif found is None or len(data) < wanted:
                raise CorruptMessage("the data is cut short")
            elif found[1] > MAX_DECOMPRESSED_BYTES:
                raise MessageTooLarge(f"it has {found[1]} bytes; the limit is {MAX_DECOMPRESSED_BYTES}")
            else:
                wanted = found[1]


def _made(batches: list[bytes]) -> MemorySlice:
    return MemorySlice(b"".join(batches), MAGIC)


SPACING_BYTES = 64 << 10
"""Least distance between two rows of a table, and the size of one read of a walk."""

MAX_ROWS = 1 << 20
"""Of all tables together, 8 bytes each; enough for 64 GiB of logs."""

_CHEAPER = 8
"""Walking over a byte costs at most this fraction of converting one (benchmarks/view07.py)."""

_HEAD_BYTES = 4 << 10
"""Size of one read when walking over entries longer than `SPACING_BYTES`."""


class Boundaries:
    """*Thread-safe: ``_lock`` guards the tables.* Sorted offsets at which entries begin, by log. With too
    many rows, the table of the least recently used log is dropped; of a single log, its older half.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._tables: OrderedDict[ref[Log], array[int]] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._rows

    def note(self, log: Log, offset: int) -> None:
        """Note that an entry begins at ``offset``, or will."""
        key = ref(log)
        with self._lock:
            table = self._tables.setdefault(key, array("q"))
            self._tables.move_to_end(key)
            place = bisect_left(table, offset)
            if place and offset - table[place - 1] < SPACING_BYTES:
                return
            if place < len(table) and table[place] - offset < SPACING_BYTES:
                return
            table.insert(place, offset)
            self._rows += 1
            if self._rows > self._max_rows:
                self._make_room()

    def find(self, log: Log, offset: int, allowance: Allowance) -> int | None:
        """Where the entry with this byte begins; None if the allowance is spent: call again."""
        position = self._nearest(log, offset)
        if position == offset and not allowance.spent:
            return position
        step = SPACING_BYTES
        while not allowance.spent:
            data = read_bytes(log, position, step)
            allowance.take(len(data) // _CHEAPER)
            try:
                passed = entry_at_byte(data, offset - position)
            except CorruptMessage as e:
                raise CorruptMessage(f"in the entries from offset {position} on: {e}") from None
            if passed + MIN_ENTRY_BYTES <= len(data):
                return position + passed
            if not passed:
                raise CorruptMessage(f"the entry at offset {position} is cut short")
            step = _HEAD_BYTES if passed > len(data) + SPACING_BYTES else SPACING_BYTES
            position += passed
            self.note(log, position)
        return None

    def _nearest(self, log: Log, offset: int) -> int:
        key, start = ref(log), log.start_offset
        if offset < start:
            raise OffsetOutOfRange(str(log.topic_partition), offset, start, log.readable_end)
        known = start
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self._tables.move_to_end(key)
                expired = bisect_left(table, start)
                del table[:expired]
                self._rows -= expired
                place = bisect_right(table, offset)
                known = max(start, table[place - 1]) if place else start
        if offset - known > SPACING_BYTES:
            bases = [facts.base_offset for facts in log.facts()]
            place = bisect_right(bases, offset)
            known = max(known, bases[place - 1]) if place else known
        return known

    def _make_room(self) -> None:
        if len(self._tables) > 1:
            _, table = self._tables.popitem(last=False)
            self._rows -= len(table)
            return
        (table,) = self._tables.values()
        half = len(table) // 2
        del table[:half]
        self._rows -= half


def read_bytes(log: Log, offset: int, size: int) -> bytes:
    piece = log.read(offset, size, at_least_one=False)
    try:
        return piece.read()
    except EOFError as e:
        raise CorruptMessage(f"{log.topic_partition}: {e}") from None
    except OSError as e:
        raise log.directory.refused(f"reading {log.path.name}", e) from e
    finally:
        piece.close()
