"""Walks Kafka 0.7 entries in a fetch answer; `formats.v07` names errors. An offset is an entry's byte
position. Messages in a compressed entry, which this opens, share it and are counted by `innerIndex`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_kafkalog.columnar.column_types import (
    Answer,
    Block,
    ColumnLimits,
    Cursor,
    Engine,
    Kind,
    Status,
    Stopped,
)
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.compression import decompress
from pyspark_kafkalog.formats.v07 import entries, sound_entry, verify_entry

OPENED_BYTES = 256 << 10  # compressed entries opened at once: saves engine calls, yet stays in the cache


@dataclass(slots=True)
class _Set:
    """Consecutive entries, and the read position in them."""

    data: memoryview
    offset: int  # offset of the enclosing compressed entry; in the answer, of its first byte
    left: int = 0  # decompression budget shared by nested sets
    position: int = 0


class EntryWalk:
    """See `column_types.Walker`; wanted are the entries that begin in the range."""

    columns_go_on = True

    def __init__(self, answer: Answer) -> None:
        self._answer, self._room, self._status = answer, answer.room, Status.DONE
        self._outer = _Set(answer.data, answer.start)
        self._stop = max(0, answer.end - answer.start)
        self._opened: list[_Set] = []  # contents of consecutive compressed entries, in reading order
        self._nested: list[_Set] = []  # sets nested in the first of them, outermost first
        self._index = 0

    @property
    def next_offset(self) -> int:
        """Where reading continues: after the last entry whose messages were all yielded."""
        return self._opened[0].offset if self._opened else self._answer.start + self._outer.position

    def groups(self, engine: Engine, limits: ColumnLimits) -> Iterator[list[Block]]:  # noqa: ARG002
        while True:
            yield self._blocks()
            at = self._nested[-1] if self._nested else self._opened[0] if self._opened else self._outer
            inner = at is not self._outer
            try:
                if self._status is Status.COMPRESSED:
                    if inner:
                        self._nested.append(self._within(at))
                    elif self._room <= 0:
                        return
                    else:
                        self._open()
                elif self._status is Status.FAULT or (
                    self._status is Status.CUT and inner and not at.position
                ):
                    raise _fault(at, inner)
                elif self._nested:
                    self._nested.pop()
                elif inner:
                    del self._opened[0]
                    self._index = 0
                else:
                    return
            except KafkaError as e:
                raise type(e)(f"{self._answer.log}, entry at offset {self.next_offset}: {e}") from e

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        self._status = stopped.status
        reached = min(cursor.block, len(blocks) - 1)
        block = blocks[reached]
        if self._nested:
            at = self._nested[-1]
        else:
            del self._opened[: len(self._opened) + 1 + reached - len(blocks)]
            at = self._opened[0] if self._opened else self._outer
        at.position = block.start + cursor.position
        if block.low < 0:
            return self.next_offset
        self._index = block.low + cursor.record
        return None

    def _blocks(self) -> list[Block]:
        index, blocks = self._index, []
        for at in self._nested[-1:] or self._opened:
            end = len(at.data)
            blocks.append(Block(at.data, at.position, end, 0, 0, index, end, at.offset, 0, 0, Kind.ENTRIES))
            index = 0
        if not self._nested:
            at, stop = self._outer, self._stop
            end = len(at.data)
            blocks.append(Block(at.data, at.position, end, 0, 0, -1, stop, at.offset, 0, 0, Kind.ENTRIES))
        return blocks

    def _open(self) -> None:
        """Open the compressed entry at the answer's position, and those that follow it."""
        outer, limit, size, self._index = self._outer, self._answer.max_batch_bytes, 0, 0
        while not self._opened or (size < OPENED_BYTES and self._room > 0 and outer.position < self._stop):
            entry = sound_entry(outer.data, outer.position, sys.maxsize)
            try:
                if entry is None:
                    raise _fault(outer, False)
                if not entry.codec:
                    return
                data = memoryview(decompress(entry.codec, entry.payload, limit))
            except KafkaError:
                if self._opened:
                    return  # raised when it is the next
                raise
            self._opened.append(_Set(data, outer.offset + outer.position, limit - len(data)))
            outer.position += entry.size
            size += len(data)
            self._room -= len(data)

    def _within(self, at: _Set) -> _Set:
        entry = sound_entry(at.data, at.position, sys.maxsize)
        if entry is None:
            raise _fault(at, True)
        top = self._opened[0]
        data = memoryview(decompress(entry.codec, entry.payload, top.left))
        top.left -= len(data)
        self._room -= len(data)
        at.position += entry.size
        return _Set(data, top.offset)


def _fault(at: _Set, inner: bool) -> CorruptMessage:
    where = f"byte {at.position} of the set in it" if inner else "its first byte"
    try:
        entry = next(entries(at.data[at.position :]), None)
        if entry is None:
            return CorruptMessage(f"the first of the {len(at.data)} bytes in it is incomplete")
        verify_entry(entry)
    except CorruptMessage as e:
        return CorruptMessage(f"counted from {where}: {e}")
    raise RuntimeError(f"an engine found fault with a good message, at {where}")
