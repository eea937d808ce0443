"""What the two engines have in common: what they are given, where they stop, and why.

An engine turns the records of some `Block` values into columns. It stops where the columns are full and goes
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

    from pyspark_kafkalog.columnar.blocks import Block

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

        Raises nothing for bad data: the status says what is wrong.
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
