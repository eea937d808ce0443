"""How far a reader that does not know every format and codec can read what a log holds. Pure.

Looks at the first bytes of each entry, which all formats share as far as they matter here; `message_set` and
the formats' own modules have the layouts.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pyspark_kafkalog.formats.batch_header import CODEC_BITS, MAGIC
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.varint import Buffer

_HEAD = Struct(">8xi4xB4xh")
"""Length, magic and, in a v2 batch, attributes. Every whole entry is longer."""

HEAD_BYTES = _HEAD.size
_OVERHEAD = 12
"""Bytes of an entry before those that its length counts."""

_ZSTD = int(Codec.ZSTD)


class ReaderLimits(NamedTuple):
    """What a reader knows: formats up to ``magic``, and whether it knows zstd, which only v2 can have."""

    magic: int
    zstd: bool

    def takes(self, newest_magic: int) -> bool:
        """Whether it can read whatever is of these formats, so that nothing need be looked at."""
        return newest_magic <= self.magic and (self.zstd or newest_magic < MAGIC)


def readable_until(buf: Buffer, pos: int, limits: ReaderLimits) -> tuple[int, bool]:
    """Where the entries from ``pos`` on end that the reader can take, and whether that is for good.

    True: an entry begins there that it cannot take. False: the head of the next one is not in ``buf``, or
    cannot be one, which is not for us to say. The position may lie beyond the end of ``buf``.
    """
    end = len(buf) - HEAD_BYTES
    unpack = _HEAD.unpack_from
    most, zstd = limits
    while pos <= end:
        length, magic, attributes = unpack(buf, pos)
        if magic > most or (magic == MAGIC and not zstd and attributes & CODEC_BITS == _ZSTD):
            return pos, True
        if length <= 0:
            break
        pos += _OVERHEAD + length
    return pos, False
