"""What the two engines have in common: what they are given, where they stop, and why.

An engine turns the records of some `Block`s into columns. It stops where the columns are full and goes
on from its `Cursor` with the next call, so that neither a large batch nor a large record needs special care.
Both engines stop at the same record and find the same fault in it; `plain` is the oracle of `kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
"""The largest time, before or after the epoch, that still fits 64 bits in microseconds."""


class Status(IntEnum):
    """Why an engine stopped: at the end, where its columns were full, or at a fault in the data."""

    DONE = 0
    FULL = 1
    BAD_NUMBER = 2
    BAD_LENGTH = 3
    BAD_FIELD = 4
    BAD_HEADERS = 5
    LEFT_OVER = 6
    BAD_OFFSET = 7
    TRAILING = 8
    BAD_TIMESTAMP = 9


class Block(NamedTuple):
    """The records of one batch, decompressed, or messages of v0 and v1 that follow each other:
    ``record_count`` of them in ``buffer[start:end]``.

    Records with an offset delta in ``[low, high)`` are wanted. ``timestamp`` is the base of their times, or
    the time of all of them where ``append_time`` is 1; milliseconds. A message's delta is its offset as it
    stands there, and its time counts from 0; `message_engine.OWN_KIND` is one more value of ``append_time``.
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
    is_messages: bool = False


class Limits(NamedTuple):
    """How much one call may take: records, bytes of them as they lie in their blocks, headers."""

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


@dataclass(slots=True)
class Cursor:
    """Where an engine goes on: block, byte within the block, record, and the offset delta of the record
    before.
    """

    block: int = 0
    position: int = 0
    record: int = 0
    previous_delta: int = -1


class Filled(NamedTuple):
    """What one call gave.

    ``columns`` are arrays of ``rows`` rows by column name. ``number`` is what was wrong where ``status`` is
    a fault at ``cursor``: of a bad timestamp it is the time delta, and ``offset_delta`` names the record.
    Where it is FULL, ``need_bytes`` and ``need_headers`` are what the next record takes alone.
    """

    status: Status
    rows: int
    columns: Mapping[str, pa.Array]
    number: int = 0
    need_bytes: int = 0
    need_headers: int = 0
    offset_delta: int = 0


class Engine(Protocol):
    """Blocks to columns. Implementations hold nothing between calls but what is in ``cursor``."""

    name: str

    def fill(self, blocks: Sequence[Block], cursor: Cursor, limits: Limits, wanted: Wanted) -> Filled:
        """Columns of the records from ``cursor`` on, which moves to where this call stopped.

        The blocks are of one kind, all or none of them messages. Raises nothing for bad data: the status says
        what is wrong.
        """
        ...

    def walk(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        """The plain messages of v0 and v1 from byte ``start`` on, as far as they begin before byte ``stop``,
        have offsets less than ``below``, and these rise. Raises nothing for bad data.
        """
        ...


def describe(status: Status, number: int) -> str:
    """What is wrong with a record, in words."""
    return _FAULTS[status].format(number=number)


_FAULTS = {
    Status.BAD_NUMBER: "a variable-length number is cut short or too long",
    Status.BAD_LENGTH: "its length {number} does not fit its batch",
    Status.BAD_FIELD: "a length of {number} does not fit the record",
    Status.BAD_HEADERS: "{number} headers cannot be in the bytes left",
    Status.LEFT_OVER: "{number} bytes are left over in it",
    Status.BAD_OFFSET: "its offset delta {number} does not rise or leaves the batch",
    Status.TRAILING: "{number} bytes follow the last record",
}


OWN_KIND = 2
"""`engine.Block.append_time` where each message says itself who set its time."""

NO_KIND = -1
"""The kind of a v0 message's time, which is none: what Spark's connector has in ``timestampType``. The other
kinds are those of `types.TimestampType`."""

# What the compiled walk leaves in its array of numbers: a `Walk` but for why it ended.
WALK_FIELDS = 4
END, COUNT, FIRST_OFFSET, LAST_OFFSET = range(WALK_FIELDS)


class Stop(IntEnum):
    """Why a walk ended before the next entry."""

    DONE = 0
    """It begins where the walk was to end, or there is none."""
    CUT = 1
    """It is incomplete."""
    OTHER = 2
    """Its magic is neither 0 nor 1."""
    COMPRESSED = 3
    """It is a set; its checksum was not looked at."""
    BEYOND = 4
    """Its offset is not below the one asked for; its checksum was not looked at."""
    NOT_RISING = 5
    """Its offset is not above the one before."""
    FAULT = 6
    """It is wrong."""


class Walk(NamedTuple):
    """``message_count`` verified messages that end at byte ``end``, and why the walk ended there.

    Their offsets rise from the first to the last; both are -1 where there is no message.
    """

    stop: Stop
    end: int
    message_count: int
    first_offset: int
    last_offset: int
