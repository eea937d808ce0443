"""Entries of v0 and v1 by hand, and what the tests of both share."""

from __future__ import annotations

import struct
import zlib

import pytest

from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.legacy import CODECS, LegacyFormat, messages
from pyspark_kafkalog.types import NewRecord

LIMIT = 1 << 20
FORMAT = LegacyFormat()
NEW = [NewRecord(b"one", b"k1", 1000), NewRecord(None, None, 3000), NewRecord(b"", b"", 2000)]

both = pytest.mark.parametrize("magic", [0, 1])
packing = pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name.lower())


def sealed(offset: int, covered: bytes) -> bytes:
    """An entry around what its checksum covers."""
    return struct.pack(">qiI", offset, 4 + len(covered), zlib.crc32(covered)) + covered


def entry(offset: int, magic: int, value: bytes | None, attributes: int = 0, timestamp: int = -1) -> bytes:
    """An entry without key, by hand."""
    covered = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    size = -1 if value is None else len(value)
    return sealed(offset, covered + struct.pack(">ii", -1, size) + (value or b""))


def read(data: bytes, *, stored: bool = True, max_bytes: int = LIMIT) -> list[tuple[int, int, bytes | None]]:
    """Offset, time and value of the messages of the one entry in ``data``."""
    return [
        (m.offset, m.timestamp, None if m.value is None else bytes(m.value))
        for m in messages(data, max_bytes=max_bytes, stored=stored)
    ]


def refuse(data: bytes, why: str, error: type[Exception] = CorruptMessage) -> None:
    with pytest.raises(error, match=why):
        read(data)


def only_frame(data: bytes) -> Frame:
    frame = FORMAT.frame_at(memoryview(data), 0, 0)
    assert frame is not None
    return frame
