"""The engine in plain Python for messages of Kafka 0.7: without numba the fallback, else the kernel's oracle.

One loop takes all good entries and checks only what it must. At the first that is not good, or is shorter
than what the loop reads, `_Lists._look_at` takes its time over it, in the kernel's order.
"""

from __future__ import annotations

import struct
from array import array

import pyarrow as pa

from pyspark_kafkalog.columnar.columns import INNER_INDEX, INT32, INT64, blobs, numbers
from pyspark_kafkalog.columnar.v07_engine import Limits, Span, Status, Wanted
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.v07 import CODEC_BITS, entry_header

_ENTRY = struct.Struct(">iBBI")
"""The header of magic 1; of magic 0 the attributes are the checksum's first byte, and its last is missing."""

_CRC = struct.Struct(">I")


class PlainEngine:
    """Entries to columns without compiled code. *Thread-safe:* it holds nothing."""

    name = "plain"

    def columns(self, limits: Limits, wanted: Wanted) -> _Lists:
        """Empty ones; see `v07_engine.Engine`."""
        return _Lists(limits, wanted)


class _Lists:
    """Columns as lists. *Not thread-safe: one decoder's call fills them.*"""

    def __init__(self, limits: Limits, wanted: Wanted) -> None:
        self._wanted = wanted
        self._rows_left, self._room = limits
        self._values: list[bytes | None] = []
        self._offsets = array("q")
        self._indexes = array("i")
        self.rows = self.need_bytes = 0

    def take(self, span: Span) -> Status:
        """Append the messages from where ``span`` stands; see `v07_engine.Columns`."""
        if span.whole is None:
            span.whole = bytes(span.data)
        data = span.whole
        stop = min(span.stop, len(data))
        while True:
            self._take_good(span, data, stop)
            if span.position >= stop:
                return Status.DONE
            status, payload, end = self._look_at(data, span.position)
            if status is not Status.DONE:
                return status
            self._add(span, [data[payload:end]], [span.position], end)

    def _take_good(self, span: Span, data: bytes, stop: int) -> None:
        """Append the leading entries that are good and of a usual length, as far as there is room."""
        unpack, size = _ENTRY.unpack_from, len(data)
        pos, rows_left, room = span.position, self._rows_left, self._room
        values: list[bytes] = []
        positions: list[int] = []
        try:
            while pos < stop and len(values) < rows_left:
                length, magic, attributes, crc = unpack(data, pos)
                end = pos + 4 + length
                if end > size or length < 5 + magic:
                    break
                if magic == 1 and not attributes & CODEC_BITS:
                    value = data[pos + 10 : end]
                elif magic == 0:
                    value = data[pos + 9 : end]
                    (crc,) = _CRC.unpack_from(data, pos + 5)
                else:
                    break
                room -= len(value)
                if room < 0 or crc32(value) != crc:
                    break
                values.append(value)
                positions.append(pos)
                pos = end
        except struct.error:
            pass
        self._add(span, values, positions, pos)

    def _look_at(self, data: bytes, pos: int) -> tuple[Status, int, int]:
        """What is to be said of the entry at ``pos``, and where its payload begins and ends."""
        try:
            found = entry_header(data, pos)
        except CorruptMessage:
            return Status.FAULT, 0, 0
        if found is None or found[1] > len(data):
            return Status.CUT, 0, 0
        payload, end, codec = found
        if codec:
            return Status.COMPRESSED, payload, end
        if self._rows_left == 0 or end - payload > self._room:
            self.need_bytes = end - payload
            return Status.FULL, payload, end
        (crc,) = _CRC.unpack_from(data, payload - _CRC.size)
        good = crc32(data[payload:end]) == crc
        return Status.DONE if good else Status.FAULT, payload, end

    def _add(self, span: Span, values: list[bytes], positions: list[int], end: int) -> None:
        """Append these payloads, whose entries stand at ``positions``; ``span`` goes on at ``end``."""
        count = len(values)
        if self._wanted.value:
            self._values += values
        if self._wanted.offset:
            offset = span.offset
            self._offsets.extend([offset] * count if span.inner else [offset + at for at in positions])
        if self._wanted.inner_index:
            self._indexes.extend(range(span.index, span.index + count) if span.inner else [0] * count)
        if span.inner:
            span.index += count
        span.position = end
        self.rows += count
        self._rows_left -= count
        self._room -= sum(map(len, values))

    def arrays(self) -> dict[str, pa.Array]:
        """The columns as far as they are filled."""
        columns = {}
        if self._wanted.value:
            columns["value"] = blobs(self._values)
        if self._wanted.offset:
            columns["offset"] = numbers(INT64, self._offsets)
        if self._wanted.inner_index:
            columns[INNER_INDEX] = numbers(INT32, self._indexes)
        return columns
