"""What an engine is given and gives: blocks, columns, and why it stopped.

An `Engine` makes columns of the `Block`s that a walker gives; there are two, the compiled one in `arena` and
the one in `plain`. Columns that are full stop anywhere and the next ones go on from the `Cursor`, so neither
a large batch nor a large record needs special care. Both engines stop at the same record and find the same
fault in it: the plain one is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
"""The largest time, before or after the epoch, that still fits 64 bits in microseconds."""

OWN_KIND = 2
"""`Block.append_time` where each message says itself who set its time."""

NO_KIND = -1
"""The kind of a v0 message's time, which is none: what Spark's connector has in ``timestampType``. The other
kinds are those of `types.TimestampType`."""

# What the compiled walk over messages leaves in its array of numbers: a `Walk` without its status.
WALK_FIELDS = 4
END, COUNT, FIRST_OFFSET, LAST_OFFSET = range(WALK_FIELDS)


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


class Limits(NamedTuple):
    """How much columns may take: records, bytes of them as they lie in their blocks (of entries those of
    payloads), headers.
    """

    records: int
    data_bytes: int
    headers: int


class Wanted(NamedTuple):
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


class Walk(NamedTuple):
    """``message_count`` verified messages of v0 and v1 that end at byte ``end``, and why a walk ended there.

    Their offsets rise from the first to the last; both are -1 where there is no message.
    """

    status: Status
    end: int
    message_count: int
    first_offset: int
    last_offset: int


MessageWalk = Callable[[memoryview, int, int, int], Walk]
"""`Engine.walk`."""


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


class Engine(Protocol):
    """Blocks to columns. *Thread-safe:* it holds nothing of what was decoded."""

    name: str

    def columns(self, blocks: Sequence[Block], limits: Limits, wanted: Wanted) -> Columns:
        """Empty ones with room for so much, ``blocks`` coming first."""
        ...

    def walk(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        """The plain messages of v0 and v1 from byte ``start`` on, as far as they begin before byte ``stop``,
        have offsets less than ``below``, and these rise. Raises nothing for bad data.
        """
        ...
