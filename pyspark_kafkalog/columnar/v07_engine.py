"""What the two engines for messages of Kafka 0.7 have in common: what they are given, and where they stop.

An engine walks the entries of a message set, verifies their checksums and appends their payloads to columns.
It stops at a compressed entry, which `v07_batches` opens: the set within is another `Span` for the same
columns. It stops at an entry that is wrong too, without saying what is: that is asked of `formats.v07`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

# What a call of the compiled kernel is told in its layout: where in the arena each column's region begins,
# in bytes, or -1 where it is not wanted; then how many rows and bytes of payloads there is room for.
LAYOUT_FIELDS = 6
OFFSETS, INDEXES, VALUE_STARTS, VALUE_DATA, CAPACITY_ROWS, CAPACITY_BYTES = range(LAYOUT_FIELDS)

# What it goes on from and leaves behind: where it stands in the set, the inner index of the next message,
# what the columns hold, and the bytes for which there was no room.
STATE_FIELDS = 5
POSITION, INDEX, ROWS, VALUE_BYTES, NEED = range(STATE_FIELDS)


class Status(IntEnum):
    """Why an engine stopped."""

    DONE = 0
    """No further entry is wanted, or none is there."""
    CUT = 1
    """The next entry is incomplete."""
    FULL = 2
    """The columns have no room for the next message."""
    COMPRESSED = 3
    """The next entry is a set; its checksum was not looked at."""
    FAULT = 4
    """The next entry is wrong."""


class Limits(NamedTuple):
    """What the columns of one record batch may take: rows, and bytes of payloads."""

    rows: int
    data_bytes: int


class Wanted(NamedTuple):
    """The columns that are made from messages; the others are the same in every row."""

    value: bool
    offset: bool
    inner_index: bool


@dataclass(slots=True)
class Span:
    """A message set, and where in it an engine goes on.

    Entries that begin at ``stop`` or later are not looked at. In the log itself each entry has the offset
    of its first byte, and ``offset`` is that of the set's; in a set that was compressed (``inner``) all
    have ``offset``, that of the entry they came in, and count ``index`` up.
    """

    data: memoryview
    stop: int
    offset: int
    inner: bool = False
    position: int = 0
    index: int = 0
    whole: bytes | None = None
    """``data`` as bytes: where the plain engine keeps them from one call to the next."""


class Columns(Protocol):
    """The columns of one record batch in the making. *Not thread-safe: belongs to one decoder's call.*"""

    @property
    def rows(self) -> int:
        """Rows so far."""
        ...

    @property
    def need_bytes(self) -> int:
        """After FULL: the payload for which there was no room."""
        ...

    def take(self, span: Span) -> Status:
        """Append the messages from where ``span`` stands, which moves to where this stops."""
        ...

    def arrays(self) -> Mapping[str, pa.Array]:
        """The columns, by name."""
        ...


class Engine(Protocol):
    """Makes columns. Implementations hold nothing of what was decoded."""

    name: str

    def columns(self, limits: Limits, wanted: Wanted) -> Columns:
        """Empty ones with room for so much."""
        ...
