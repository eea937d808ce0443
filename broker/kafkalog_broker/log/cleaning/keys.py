"""Last offset of each key in the dirty part of a log, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import md5

from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES
from pyspark_kafkalog.formats.varint import read_uvarlong

BYTES_PER_KEY = 160
"""Measured memory per key in the map: its bytes or digest, its offset, and its share of the table."""

LONGEST_PLAIN = 15
"""Longer keys are stored as 16-byte MD5 digests (Kafka digests all), which no plain key can equal."""

digest = partial(md5, usedforsecurity=False)

_NULL = 1

_LONGER = 2 * (LONGEST_PLAIN + 1)
"""Zigzag-coded length from which keys are digested."""


class KeyOffsets:
    """*Not thread-safe: one cleaning.* Last offset of each key below ``end_offset``; fill in log order."""

    __slots__ = ("_most", "end_offset", "newest")

    def __init__(self, memory_bytes: int, start_offset: int) -> None:
        """``memory_bytes``: limit of the map; one batch always fits."""
        self._most = max(1, memory_bytes // BYTES_PER_KEY)
        self.end_offset = start_offset
        """Keys from this offset on are unknown."""
        self.newest: dict[bytes, int] = {}
        """Offset by `name_of` the key."""

    def has_room(self, record_count: int) -> bool:
        """Whether a batch of ``record_count`` records still fits."""
        return not self.newest or len(self.newest) + record_count <= self._most

    def add_records(self, block: bytes, count: int, base_offset: int, start_offset: int) -> None:
        """Add the keys of a v2 batch's records from ``start_offset`` on. Raises `CorruptMessage`."""
        newest, pos = self.newest, 0
        if count * MIN_RECORD_BYTES > len(block):
            raise CorruptMessage(f"{count} records cannot be in {len(block)} bytes")
        try:
            for _ in range(count):
                if (size := block[pos]) < 128:
                    pos += 1
                elif (high := block[pos + 1]) < 128:
                    size += high - 1 << 7
                    pos += 2
                else:
                    size, pos = read_uvarlong(block, pos)
                end = pos + (size >> 1)
                pos += 1  # attributes, unused
                if block[pos] < 128:
                    pos += 1
                elif block[pos + 1] < 128:
                    pos += 2
                else:
                    pos = read_uvarlong(block, pos)[1]
                if (delta := block[pos]) < 128:
                    pos += 1
                elif (high := block[pos + 1]) < 128:
                    delta += high - 1 << 7
                    pos += 2
                else:
                    delta, pos = read_uvarlong(block, pos)
                if (length := block[pos]) < 128:
                    pos += 1
                else:
                    length, pos = read_uvarlong(block, pos)
                if length != _NULL and (offset := base_offset + (delta >> 1)) >= start_offset:
                    key = block[pos : pos + (length >> 1)]
                    newest[key if length < _LONGER else digest(key).digest()] = offset
                pos = end
        except IndexError:
            raise CorruptMessage(f"the batch at offset {base_offset}: its records are cut short") from None
        if pos != len(block):
            raise CorruptMessage(f"the batch at offset {base_offset}: the lengths of its records are wrong")

    def add(self, key: bytes, offset: int) -> None:
        self.newest[name_of(key)] = offset

    def newest_of(self, key: bytes) -> int:
        """Last offset of this key, or -1."""
        return self.newest.get(name_of(key), -1)


def name_of(key: bytes) -> bytes:
    """The key itself, or its digest if it is long."""
    return key if len(key) <= LONGEST_PLAIN else digest(key).digest()


def walk_records(block: bytes, count: int, base_offset: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Start, position of the time delta, zigzag time delta, offset, position of the key length and end of
    each record in a v2 batch's decompressed ``block``. Raises `CorruptMessage`.
    """
    pos = 0
    try:
        for _ in range(count):
            start = pos
            if (size := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                size += high - 1 << 7
                pos += 2
            else:
                size, pos = read_uvarlong(block, pos)
            end = pos + (size >> 1)
            pos = at = pos + 1
            if (time := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                time += high - 1 << 7
                pos += 2
            else:
                time, pos = read_uvarlong(block, pos)
            if (delta := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                delta += high - 1 << 7
                pos += 2
            else:
                delta, pos = read_uvarlong(block, pos)
            if end > len(block):
                break
            yield start, at, time, base_offset + (delta >> 1), pos, end
            pos = end
    except IndexError:
        pos = -1
    if pos != len(block):
        raise CorruptMessage(f"the batch at offset {base_offset}: the lengths of its records are wrong")
