"""What does it cost a broker to give messages of 0.7 to today's clients?

Each entry is made into a record batch, in Python, whenever it is fetched; and an offset from outside is found
by walking over the lengths of entries. Both without a broker. The peers do what can be compared with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.harness import Measurement, Row, compare, interleave, repeats
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
    ours, peer = _in_turn(
        rounds,
        len(payloads),
        {
            "converted": lambda: batch_of_entry(entry, 0, max_bytes=_MAX_BYTES),
            "encode_batch of the same": lambda: encode_batch(new, codec=codec),
        },
    )
    batch = batch_of_entry(entry, 0, max_bytes=_MAX_BYTES).batch
    question = f"entry of {len(payloads)} x {len(payloads[0])} B, {codec.name.lower()}, as a batch"
    note = f"{len(entry)} bytes become {len(batch)}"
    return compare(question, ours, peer, goal=None, unit="k messages/s", scale=1e-3, note=note)


def _walk_row(rounds: int) -> Row:
    entry = encode_set([bytes(100)])
    data = entry * ((64 << 10) // len(entry))
    ours, peer = _in_turn(
        rounds,
        len(data),
        {
            "entry_at_byte": lambda: entry_at_byte(data, _NOWHERE),
            "entries": lambda: sum(1 for _ in entries(data)),
        },
    )
    return compare("walk over entries of 100 B", ours, peer, goal=None, unit="MB/s", scale=1e-6)


def _in_turn(
    rounds: int, amount: int, calls: dict[str, Callable[[], object]]
) -> tuple[Measurement, Measurement]:
    counts = {name: repeats(call) for name, call in calls.items()}

    def several(name: str) -> Callable[[], None]:
        def run_them() -> None:
            for _ in range(counts[name]):
                calls[name]()

        return run_them

    measured = interleave(
        {name: several(name) for name in calls},
        rounds,
        amounts={name: float(amount * counts[name]) for name in calls},
    )
    ours, peer = measured.values()
    return ours, peer
