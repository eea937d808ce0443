"""Record batches by hand: with bytes that no encoder writes, under a checksum that fits."""

from __future__ import annotations

import struct
from typing import Any

from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import decode_records, encode_batch, read_header
from pyspark_kafkalog.types import NewRecord, Record

LIMIT = 1 << 24
THREE = [
    NewRecord(b"v0", b"k0", 1000, (("h", b"x"), ("h", None), ("é", b""))),
    NewRecord(None, b"", 1500),
    NewRecord(b"", None, 900),
]


def decode(batch: bytes | bytearray, **kw: Any) -> list[Record]:
    return decode_records(batch, 0, read_header(batch), LIMIT, **kw)


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with the checksum and length that fit its bytes."""
    out = bytearray(batch)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


def with_block(block: bytes, *, count: int, last_delta: int | None = None) -> bytes:
    """An uncompressed batch of exactly these record bytes."""
    batch = bytearray(encode_batch([], last_offset_delta=count - 1 if last_delta is None else last_delta))
    struct.pack_into(">i", batch, 57, count)
    return resealed(batch + block)


def patched(batch: bytes, fmt: str, position: int, value: int) -> bytes:
    out = bytearray(batch)
    struct.pack_into(fmt, out, position, value)
    return resealed(out) if position >= 21 else bytes(out)
