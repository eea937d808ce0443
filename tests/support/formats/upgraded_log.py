"""A log that went through Kafka 0.8, 0.11 and 0.10: what it holds, as bytes, records and rows."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.types import NewRecord

WRITTEN = [
    (message_format, codec)
    for message_format in ("v0", "v2", "v1")
    for codec in ("none", "gzip", "snappy", "lz4")
]
EACH = 3


def record(offset: int, message_format: str) -> NewRecord:
    """The message at ``offset``: some have no key, some no value, and v0 has no times."""
    key = None if offset % 3 == 1 else b"k%d" % offset
    value = None if offset % 7 == 5 else b"value %d" % offset * 9
    return NewRecord(value, key, -1 if message_format == "v0" else 1_000_000 + offset)


EXPECTED = [
    record(place * EACH + i, message_format)
    for place, (message_format, _) in enumerate(WRITTEN)
    for i in range(EACH)
]
KINDS = [-1 if message_format == "v0" else 0 for message_format, _ in WRITTEN for _ in range(EACH)]


def stored_log() -> bytes:
    """`EXPECTED` as a broker of Kafka keeps it, from offset 0 on."""
    parts = []
    for place, (message_format, codec) in enumerate(WRITTEN):
        first = place * EACH
        new = EXPECTED[first : first + EACH]
        if message_format == "v2":
            parts.append(encode_batch(new, codec=Codec.named(codec), base_offset=first))
        else:
            magic = int(message_format[1])
            parts.append(encode_set(new, magic=magic, codec=Codec.named(codec), base_offset=first))
    return b"".join(parts)


def expected_rows(start: int, end: int) -> list[tuple[Any, ...]]:
    return [
        (offset, EXPECTED[offset].key, EXPECTED[offset].value, EXPECTED[offset].timestamp, KINDS[offset])
        for offset in range(start, end)
    ]
