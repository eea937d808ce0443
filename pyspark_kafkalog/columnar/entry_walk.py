"""Entries of Kafka 0.7 in a fetch answer: plain ones as they lie there, and what compressed ones hold.

An offset is the byte at which an entry lies in its log. Messages of a compressed entry share the entry's, and
are counted by `innerIndex`. Sets may lie within sets. An engine verifies entries while it makes columns of
them: what it cannot go on with, this opens, or has `formats.v07` say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_kafkalog.columnar.answers import Answer
from pyspark_kafkalog.columnar.engine import Block, Cursor, Engine, Kind, Limits, Status, Stopped
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.compression import decompress
from pyspark_kafkalog.formats.v07 import entries, verify_entry


@dataclass(slots=True)
class _Level:
    """A set of entries, and where in it reading goes on. The first is the answer itself."""

    data: memoryview
    stop: int
    position: int = 0


class EntryWalk:
    """See `answers.Walker`; the offsets of an answer are wanted by entries that begin in the range."""

    columns_go_on = True

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._levels = [_Level(answer.data, max(0, answer.end - answer.start))]
        self._index = 0
        """The inner index of the next message."""
        self._entry_at = 0
        """Where the compressed entry at hand begins, if one is open."""
        self._left, self._room = answer.max_batch_bytes, answer.room
        self._status = Status.DONE

    @property
    def next_offset(self) -> int:
        """Where reading goes on: after the last entry of which all messages were given."""
        done = self._entry_at if len(self._levels) > 1 else self._levels[0].position
        return self._answer.start + done

    def groups(self, engine: Engine, limits: Limits) -> Iterator[list[Block]]:  # noqa: ARG002
        """The set that was opened last, and what follows it in the answer; see `engine.Walker`."""
        while True:
            levels = self._levels
            if len(levels) == 2:
                # One call for both: a set of 64 KiB decodes in 12 us, and a call has a price of 5.
                yield [self._block(levels[1]), self._block(levels[0])]
            else:
                yield [self._block(levels[-1])]
            level, inner = levels[-1], len(levels) > 1
            try:
                if self._status is Status.COMPRESSED:
                    if not inner and self._room <= 0:
                        return
                    self._open(level, inner)
                elif self._status is Status.FAULT or (
                    self._status is Status.CUT and inner and not level.position
                ):
                    raise _fault(level, inner)
                elif not inner:
                    return
                else:
                    self._levels.pop()
            except KafkaError as e:
                raise type(e)(f"{self._answer.log}, entry at offset {self.next_offset}: {e}") from e

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        """See `engine.Walker`."""
        self._status = stopped.status
        block = blocks[min(cursor.block, len(blocks) - 1)]
        if block.low < 0:
            del self._levels[1:]
        self._levels[-1].position = block.start + cursor.position
        if block.low < 0:
            return self.next_offset
        self._index = block.low + cursor.record
        return None

    def _block(self, level: _Level) -> Block:
        inner = level is not self._levels[0]
        offset, index = (self.next_offset, self._index) if inner else (self._answer.start, -1)
        place, end = level.position, len(level.data)
        return Block(level.data, place, end, 0, 0, index, level.stop, offset, 0, 0, Kind.ENTRIES)

    def _open(self, level: _Level, inner: bool) -> None:
        """Go into the compressed entry at which ``level`` stands."""
        entry = next(entries(level.data[level.position :]))
        verify_entry(entry)
        if not inner:
            self._index, self._left, self._entry_at = 0, self._answer.max_batch_bytes, level.position
        data = memoryview(decompress(entry.codec, entry.payload, self._left))
        self._left -= len(data)
        self._room -= len(data)
        level.position += entry.size
        self._levels.append(_Level(data, len(data)))


def _fault(level: _Level, inner: bool) -> CorruptMessage:
    """What is wrong with the entry at which ``level`` stands."""
    where = f"byte {level.position} of the set in it" if inner else "its first byte"
    try:
        entry = next(entries(level.data[level.position :]), None)
        if entry is None:
            return CorruptMessage(f"the first of the {len(level.data)} bytes in it is incomplete")
        verify_entry(entry)
    except CorruptMessage as e:
        return CorruptMessage(f"counted from {where}: {e}")
    raise RuntimeError(f"an engine found fault with a good message, at {where}")
