"""Where the entries of 0.7's logs begin: no byte of a log says so but the lengths of all entries before it.

An offset from outside may lie anywhere. The entry around it is found by walking from a place where one is
known to begin: the start of a segment, or what earlier walks have left in a sparse table in memory.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from weakref import ref

from broker.log.log import Log
from broker.server.allowance import Allowance
from pyspark_kafkalog.errors import CorruptMessage, OffsetOutOfRange
from pyspark_kafkalog.formats.v07 import MIN_ENTRY_BYTES, entry_holding

SPACING_BYTES = 64 << 10
"""Two rows of the table are at least so far apart, and one read of a walk is so long."""

MAX_ROWS = 1 << 20
"""Rows of all tables together, 8 bytes each: 64 GiB of logs."""

_CHEAPER = 8
"""A byte walked over costs so much less than one made into a record, or less still (benchmarks/view07.py)."""

_HEAD_BYTES = 4 << 10
"""One read of a walk over entries of which each is longer than `SPACING_BYTES`."""


class Boundaries:
    """*Thread-safe: ``_lock`` guards the tables.* Offsets at which entries begin, sorted, by log.

    A log's table goes with the log that was asked about longest ago when there are too many rows; of the only
    log the older half goes. Rows of segments that retention has removed go when the log is next asked about.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._tables: OrderedDict[ref[Log], array[int]] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._rows

    def note(self, log: Log, offset: int) -> None:
        """An entry begins at ``offset``, or the next one will."""
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
        """Offset of the entry that holds the byte ``offset``, which lies before the readable end.

        None when the allowance is spent before; the next call goes on from where this one came to.

        Raises:
            CorruptMessage: there are no entries that lead to it.
            OffsetOutOfRange: retention has just removed it.
            StorageError: the disk failed.
        """
        position = self._nearest(log, offset)
        if position == offset and not allowance.spent:
            return position
        step = SPACING_BYTES
        while not allowance.spent:
            data = read_bytes(log, position, step)
            allowance.take(len(data) // _CHEAPER)
            try:
                passed = entry_holding(data, offset - position)
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
        """The last known beginning of an entry that is not behind ``offset``."""
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
    """At most ``size`` bytes from ``offset`` on, to the end of the segment and of what can be read.

    Raises:
        OffsetOutOfRange, CorruptMessage, StorageError: as `Log.read`.
    """
    piece = log.read(offset, size, at_least_one=False)
    try:
        return piece.read()
    except EOFError as e:
        raise CorruptMessage(f"{log.topic_partition}: {e}") from None
    except OSError as e:
        raise log.directory.refused(f"reading {log.path.name}", e) from e
    finally:
        piece.close()
