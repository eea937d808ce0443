"""Blocks, columns and statuses that walkers and engines exchange.

A walker yields `Block`s of readable entries; an `Engine` turns them into columns. The compiled and the plain
one, its oracle, stop at the same record with the same fault. Full columns continue from the `Cursor`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from pyspark_kafkalog.formats.message_set import AbortedTransactions, ExpectedOffsets
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
"""The largest time, before or after the epoch, that fits 64 bits in microseconds."""

OWN_KIND = 2  # `Block.append_time` if each message says itself who set its time
NO_KIND = -1
"""``timestampType`` of a v0 message, which has no time, as in Spark's connector. The others are
`types.TimestampType`."""


class Status(IntEnum):
    DONE = 0  # No more is wanted, or the data ends.
    FULL = 1  # The columns have no room for the next record.

    BAD_NUMBER = 2
    BAD_LENGTH = 3
    BAD_FIELD = 4
    BAD_HEADERS = 5
    LEFT_OVER = 6
    BAD_OFFSET = 7
    TRAILING = 8
    BAD_TIMESTAMP = 9

    # A walk stopped before a message or entry that:
    CUT = 10  # is incomplete
    OTHER = 11  # has a magic other than 0 and 1
    COMPRESSED = 12  # is compressed; checksum not verified
    BEYOND = 13  # has an offset at or above the limit; checksum not verified
    NOT_RISING = 14  # has an offset not above the previous one
    FAULT = 15  # is invalid; `formats` produces the error
    ODD = 16  # is a batch that `batch_walk` must handle itself; checksum not verified


class Kind(IntEnum):
    RECORDS = 0  # of one v2 batch, checksum verified
    MESSAGES = 1  # of v0 and v1, consecutive, all verified
    ENTRIES = 2  # of 0.7, not verified yet: the engine does it


class Block(NamedTuple):
    """``record_count`` records or messages in ``buffer[start:end]``, decompressed.

    Records with an offset delta in ``[low, high)`` are wanted. ``timestamp`` is in milliseconds: the base of
    their times, or the time of all if ``append_time`` is 1. For messages the delta is the stored offset and
    times count from 0.

    For 0.7 entries, all that begin before byte ``high`` are wanted and their number is unknown. In the log
    itself ``low`` is -1 and an entry's offset is ``base_offset`` plus its position in ``buffer``. In a
    compressed set all entries have ``base_offset``, and their inner indexes start at ``low``.
    """

    buffer: memoryview
    start: int
    end: int
    record_count: int
    last_delta: int
    low: int
    high: int
    base_offset: int
    timestamp: int
    append_time: int
    kind: Kind = Kind.RECORDS


class ColumnLimits(NamedTuple):
    """Capacity of columns: records, their bytes as stored in the blocks (0.7: payload bytes), headers."""

    records: int
    data_bytes: int
    headers: int


class WantedColumns(NamedTuple):
    """The columns made from records; all others are constant."""

    key: bool
    value: bool
    offset: bool
    timestamp: bool
    timestamp_type: bool
    headers: bool
    inner_index: bool


@dataclass(slots=True)
class Cursor:
    """Where an engine continues: block, byte within it, record, and the previous record's offset delta."""

    block: int = 0
    position: int = 0
    record: int = 0
    previous_delta: int = -1


class Stopped(NamedTuple):
    """Why columns took no more; ``number`` is the faulty value of the record at ``offset_delta``."""

    status: Status
    number: int = 0
    need_bytes: int = 0
    need_headers: int = 0
    offset_delta: int = 0


class BlockTable(Sequence[Block]):
    """Records of v2 batches in one buffer; ``rows`` is a NumPy int64 array of the blocks' other fields."""

    __slots__ = ("buffer", "data_bytes", "record_count", "rows")

    def __init__(self, buffer: memoryview, rows: Any, record_count: int, data_bytes: int) -> None:
        self.buffer, self.rows = buffer, rows
        self.record_count, self.data_bytes = record_count, data_bytes

    def __len__(self) -> int:
        return len(self.rows)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        return zip(*self.rows[:, :3].T.tolist(), strict=True)

    def unpacked(self, parts: Sequence[bytes | memoryview], ends: Sequence[int]) -> BlockTable:
        """The same blocks, decompressed: ``parts`` joined, each ending at its number in ``ends``."""
        rows = self.rows.copy()
        rows[0, 0], rows[1:, 0], rows[:, 1] = 0, ends[:-1], ends
        buffer = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        return BlockTable(buffer, rows, self.record_count, ends[-1])

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> BlockTable: ...
    def __getitem__(self, index: int | slice) -> Block | BlockTable:
        if isinstance(index, slice):
            rows = self.rows[index]
            if len(rows) == len(self):
                return self
            start, end, count = rows[:, :3].sum(axis=0).tolist()
            return BlockTable(self.buffer, rows, count, end - start)
        return Block(self.buffer, *self.rows[index].tolist())

    def __iter__(self) -> Iterator[Block]:
        return (Block(self.buffer, *row) for row in self.rows.tolist())


@dataclass(slots=True)
class WalkPosition:
    """The next batch is at byte ``position``; its base offset must be at least ``lowest``, its last offset in
    ``[asked, below)``. Wanted are the offsets ``[at, end)``.
    """

    position: int
    lowest: int
    asked: int
    below: int
    at: int
    end: int


class BatchRun(NamedTuple):
    """Sound, wanted batches of one ``codec`` (not 0: the blocks are compressed), and why the walk stopped
    before the next: FULL if that has another codec or exceeds the limits.
    """

    status: Status
    blocks: BlockTable | None = None
    codec: int = 0


class Walk(NamedTuple):
    """Verified v0 and v1 messages up to byte ``end``, by rising offsets (-1 if none), and why it ended."""

    status: Status
    end: int
    message_count: int
    first_offset: int
    last_offset: int


class Columns(Protocol):
    """The columns of one record batch while they are filled. *Not thread-safe: for one decoder's call.*"""

    @property
    def rows(self) -> int: ...

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        """Append the records from ``cursor`` on and move it to where this stopped: after the last block of
        entries to the end of its entries. Raises nothing for bad data.
        """

    def arrays(self) -> Mapping[str, pa.Array]:
        """The columns by name, with the rows so far."""


class Walks(Protocol):
    """Walks over uncompressed parts of an answer. *Thread-safe.* They raise nothing for bad data."""

    def walk_batches(
        self, data: memoryview, place: WalkPosition, limits: ColumnLimits, suspects: Collection[int]
    ) -> BatchRun:
        """At least one v2 batch from ``place`` on; moves ``place``. Stops with ODD at a transactional or
        control batch of ``suspects``, or one whose checksum is slow here. Skips other control batches.
        """

    def walk_messages(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        """The plain v0 and v1 messages that begin in ``[start, stop)``; offsets rise below ``below``."""


class Engine(Walks, Protocol):
    """Turns blocks into columns. *Thread-safe:* keeps no decoded data."""

    name: str

    def columns(self, blocks: Sequence[Block], limits: ColumnLimits, wanted: WantedColumns) -> Columns:
        """Empty columns with this capacity, for ``blocks`` and those that follow."""


Aborted = Sequence[tuple[int, int]] | AbortedTransactions | None
"""(producer id, first offset) as listed in an answer, or parsed by a walk; None: every record is wanted."""

ANY_OFFSETS = ExpectedOffsets()


@dataclass(slots=True)
class Answer:
    """One fetch answer for one partition, and which of its offsets are wanted: ``[start, end)``."""

    data: memoryview
    log: TopicPartition
    start: int
    end: int
    max_batch_bytes: int  # limit for one decompressed batch, set or entry
    room: int = sys.maxsize  # total of decompressed bytes after which the walk ends
    aborted: Aborted = None
    """Aborted transactions; None: uncommitted and aborted records are wanted too. Since 0.11."""
    expected: ExpectedOffsets = ANY_OFFSETS  # bounds for the offsets of the first batch. Since 0.8.


class Walker(Protocol):
    """Walks a fetch answer of one generation. *Not thread-safe: one decoder walks it, once.*"""

    columns_go_on: bool  # whether consecutive groups share columns

    @property
    def next_offset(self) -> int:
        """Where reading continues after the walked part."""

    def groups(self, engine: Engine, limits: ColumnLimits) -> Iterator[Sequence[Block]]:
        """Yield blocks of one kind, for one call of an engine. Call `took` before the next group."""

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        """Note how far columns came in a group. Returns the offset after it; None inside a batch."""
