"""What an engine is given and gives: blocks, columns, and why it stopped.

An `Engine` makes columns of the `Block`s that a walker gives; there are two, the compiled one in `arena` and
the one in `plain`. Columns that are full stop anywhere and the next ones go on from the `Cursor`, so neither
a large batch nor a large record needs special care. Both engines stop at the same record and find the same
fault in it: the plain one is the oracle.

The blocks come from an `Answer`, which says which of its offsets are wanted. A walker knows where the entries
of its generation are and which of them may be read: `batch_walk` those since 0.8, with `message_walk` for v0
and v1, and `entry_walk` those of 0.7.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.formats.transactions import AbortedTransactions
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
"""The largest time, before or after the epoch, that still fits 64 bits in microseconds."""

OWN_KIND = 2
"""`Block.append_time` where each message says itself who set its time."""

NO_KIND = -1
"""The kind of a v0 message's time, which is none: what Spark's connector has in ``timestampType``. The other
kinds are those of `types.TimestampType`."""


class Status(IntEnum):
    """Why an engine stopped."""

    DONE = 0
    """Nothing more is wanted, or nothing more is there."""
    FULL = 1
    """The columns have no room for the next record."""

    BAD_NUMBER = 2
    BAD_LENGTH = 3
    BAD_FIELD = 4
    BAD_HEADERS = 5
    LEFT_OVER = 6
    BAD_OFFSET = 7
    TRAILING = 8
    BAD_TIMESTAMP = 9

    # Before the next message or entry, of which this is so:
    CUT = 10
    """It is incomplete."""
    OTHER = 11
    """Its magic is neither 0 nor 1."""
    COMPRESSED = 12
    """It is a set; its checksum was not looked at."""
    BEYOND = 13
    """Its offset is not below the one asked for; its checksum was not looked at."""
    NOT_RISING = 14
    """Its offset is not above the one before."""
    FAULT = 15
    """It is wrong; `formats` knows what to say."""
    ODD = 16
    """It is a batch that `batch_walk` must look at itself; its checksum was not looked at."""


class Kind(IntEnum):
    """What a block holds."""

    RECORDS = 0
    """The records of one v2 batch, whose checksum was verified."""
    MESSAGES = 1
    """Messages of v0 and v1 that follow each other, each of them verified."""
    ENTRIES = 2
    """Entries of 0.7, not looked at yet: the engine verifies each."""


class Block(NamedTuple):
    """``record_count`` records or messages in ``buffer[start:end]``, decompressed.

    Records with an offset delta in ``[low, high)`` are wanted. ``timestamp`` is the base of their times, or
    the time of all of them where ``append_time`` is 1; milliseconds. A message's delta is its offset as it
    stands there, and its time counts from 0.

    Of entries all that begin before byte ``high`` are wanted, and nothing is known of their number. In the
    log itself ``low`` is -1, and an entry has the offset ``base_offset`` plus its place in ``buffer``. In a
    set that was compressed all have ``base_offset``, and their inner indexes begin with ``low``.
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
    """How much columns may take: records, bytes of them as they lie in their blocks (of entries those of
    payloads), headers.
    """

    records: int
    data_bytes: int
    headers: int


class WantedColumns(NamedTuple):
    """The columns that are made from records; the others are the same in every row."""

    key: bool
    value: bool
    offset: bool
    timestamp: bool
    timestamp_type: bool
    headers: bool
    inner_index: bool


@dataclass(slots=True)
class Cursor:
    """Where an engine goes on: block, byte within the block, record, and the offset delta of the record
    before.
    """

    block: int = 0
    position: int = 0
    record: int = 0
    previous_delta: int = -1


class Stopped(NamedTuple):
    """Why columns took no more.

    ``number`` is what was wrong where ``status`` is a fault in a record: of a bad timestamp it is the time
    delta, and ``offset_delta`` names the record. Where it is FULL, ``need_bytes`` and ``need_headers`` are
    what the next record takes alone.
    """

    status: Status
    number: int = 0
    need_bytes: int = 0
    need_headers: int = 0
    offset_delta: int = 0


class BlockTable(Sequence[Block]):
    """The records of v2 batches that lie in one buffer: blocks as the rows of a table of numbers, which are
    their fields after the buffer. ``rows`` is an array of 64-bit integers of NumPy's, two-dimensional.
    """

    __slots__ = ("buffer", "data_bytes", "record_count", "rows")

    def __init__(self, buffer: memoryview, rows: Any, record_count: int, data_bytes: int) -> None:
        """``record_count`` and ``data_bytes`` are those of all the rows."""
        self.buffer, self.rows = buffer, rows
        self.record_count, self.data_bytes = record_count, data_bytes

    def __len__(self) -> int:
        return len(self.rows)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Of each block its start, end and count of records."""
        return zip(*self.rows[:, :3].T.tolist(), strict=True)

    def unpacked(self, parts: Sequence[bytes | memoryview], ends: Sequence[int]) -> BlockTable:
        """The same blocks, decompressed: ``parts``, that end at ``ends`` where they follow each other."""
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
    """Where a walk over batches stands, and which offsets it expects and wants.

    The next batch is at byte ``position``. It begins at offset ``lowest`` or later, and ends at ``asked`` or
    later, below ``below``. Wanted are the offsets ``[at, end)``.
    """

    position: int
    lowest: int
    asked: int
    below: int
    at: int
    end: int


class BatchRun(NamedTuple):
    """The batches that a walk found to be sound and wanted, and why it ended before the next one.

    All have the same ``codec``. Where it is none the blocks hold their records, else what must be
    decompressed. FULL: the next batch has another codec, or is one too many. DONE: nothing more is wanted.
    """

    status: Status
    blocks: BlockTable | None = None
    codec: int = 0


class Walk(NamedTuple):
    """``message_count`` verified messages of v0 and v1 that end at byte ``end``, and why a walk ended there.

    Their offsets rise from the first to the last; both are -1 where there is no message.
    """

    status: Status
    end: int
    message_count: int
    first_offset: int
    last_offset: int


class Columns(Protocol):
    """The columns of one record batch in the making. *Not thread-safe: belongs to one decoder's call.*"""

    @property
    def rows(self) -> int:
        """Rows so far."""
        ...

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        """Append the records from ``cursor`` on, which moves to where this stopped.

        After the last block of entries its position is where that ended. The blocks are of the one kind that
        the columns were made for. Raises nothing for bad data.
        """
        ...

    def arrays(self) -> Mapping[str, pa.Array]:
        """The columns by name, as far as they are filled."""
        ...


class Walks(Protocol):
    """The walks over what lies plainly in an answer. *Thread-safe.* They raise nothing for bad data."""

    def walk_batches(
        self, data: memoryview, place: WalkPosition, limits: ColumnLimits, suspects: Collection[int]
    ) -> BatchRun:
        """The batches of v2 from ``place`` on, which moves to where this ended; as many as the limits allow,
        but one at least.

        ODD ends it: a batch of a transaction, or its marker, whose producer id is among ``suspects``; or one
        whose checksum takes long here. Other control batches are passed over.
        """
        ...

    def walk_messages(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        """The plain messages of v0 and v1 from byte ``start`` on, as far as they begin before byte ``stop``,
        have offsets less than ``below``, and these rise.
        """
        ...


class Engine(Walks, Protocol):
    """Blocks to columns. *Thread-safe:* it holds nothing of what was decoded."""

    name: str

    def columns(self, blocks: Sequence[Block], limits: ColumnLimits, wanted: WantedColumns) -> Columns:
        """Empty ones with room for so much, ``blocks`` coming first."""
        ...


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

    def groups(self, engine: Engine, limits: ColumnLimits) -> Iterator[Sequence[Block]]:
        """Blocks of one kind, as many as one call of an engine takes. Each group is used up, and `took`
        called, before the next is asked for.
        """
        ...

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        """Note how far columns came in a group. Gives the offset after it, None in the middle of a batch of
        the log.
        """
        ...
