"""What does it cost a broker to give messages of 0.7 to today's clients?

Each entry is made into a record batch, in Python, whenever it is fetched; and an offset from outside is found
by walking over the lengths of entries. Both without a broker. The peers do what can be compared with it.
"""

from __future__ import annotations

import os

from benchmarks.harness import Row, compare, in_stride
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.convert import batch_of_entry
from pyspark_kafkalog.formats.v07 import encode_set, entries, entry_at_byte
from pyspark_kafkalog.types import NewRecord

_MAX_BYTES = 1 << 25
_NOWHERE = 1 << 40


def run(rounds: int = 7) -> list[Row]:
    """All rows of this question; a few seconds."""
    return [
        *(_convert_row(rounds, [os.urandom(size)], Codec.NONE) for size in (100, 10_000)),
        _convert_row(rounds, [b"message %d of a set, " % n * 4 for n in range(200)], Codec.GZIP),
        _walk_row(rounds),
    ]


def _convert_row(rounds: int, payloads: list[bytes], codec: Codec) -> Row:
    entry = encode_set(payloads, codec=codec)
    new = [NewRecord(payload) for payload in payloads]
    measured = in_stride(
        {
            "converted": lambda: batch_of_entry(entry, 0, max_bytes=_MAX_BYTES),
            "encode_batch of the same": lambda: encode_batch(new, codec=codec),
        },
        rounds,
        len(payloads),
    )
    batch = batch_of_entry(entry, 0, max_bytes=_MAX_BYTES).batch
    question = f"entry of {len(payloads)} x {len(payloads[0])} B, {codec.name.lower()}, as a batch"
    note = f"{len(entry)} bytes become {len(batch)}"
    return compare(question, *measured.values(), "k messages/s", note=note)


def _walk_row(rounds: int) -> Row:
    entry = encode_set([bytes(100)])
    data = entry * ((64 << 10) // len(entry))
    calls = {
        "entry_at_byte": lambda: entry_at_byte(data, _NOWHERE),
        "entries": lambda: sum(1 for _ in entries(data)),
    }
    return compare("walk over entries of 100 B", *in_stride(calls, rounds, len(data)).values(), "MB/s")
