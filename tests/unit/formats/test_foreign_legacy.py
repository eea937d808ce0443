"""kafka-python and aiokafka read the message sets that we write and write those that we read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import aiokafka.record.legacy_records as aiokafka_sets
import kafka.codec
import kafka.record.legacy_records as kafka_python_sets
import pytest

from pyspark_kafkalog.formats.compression import Codec, xxh32
from pyspark_kafkalog.formats.legacy import (
    LOG_APPEND_TIME_BIT,
    assign_entry,
    encode_set,
)
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.types import NewRecord, TimestampType

LIMIT = 1 << 24


def samples(seed: int, count: int = 100) -> list[NewRecord]:
    rng = random.Random(seed)

    def blob() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(200)), bytes(rng.randrange(9000))])

    time = 1_700_000_000_000
    return [NewRecord(blob(), blob(), time + rng.randrange(-5000, 90_000)) for _ in range(count)]


SAMPLES = [samples(1), samples(2, 1), [NewRecord(None, timestamp=5)], [NewRecord(b"x" * 100, b"k", 7)] * 1000]

PEERS = [pytest.param(kafka_python_sets, id="kafka-python"), pytest.param(aiokafka_sets, id="aiokafka")]

every_sample = pytest.mark.parametrize("new", SAMPLES, ids=len)
every_kind = pytest.mark.parametrize(
    ("peer", "magic", "codec"),
    [
        pytest.param(peer, magic, codec, id=f"{name}-v{magic}-{codec.name.lower()}")
        for peer, name in ((kafka_python_sets, "kafka-python"), (aiokafka_sets, "aiokafka"))
        for magic in (0, 1)
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
        # aiokafka does without lz4 where its header is the wrong one.
        if not (name == "aiokafka" and magic == 0 and codec is Codec.LZ4)
    ],
)


class _XxHash:
    """The package that kafka-python wants for v0's lz4, by our own function."""

    class xxh32:  # noqa: N801
        def __init__(self, data: bytes) -> None:
            self._sum = xxh32(data)

        def digest(self) -> bytes:
            return self._sum.to_bytes(4, "big")


@pytest.fixture(autouse=True)
def _xxhash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka.codec, "xxhash", _XxHash)


def their_reading(peer: Any, data: bytes, magic: int) -> list[tuple[Any, ...]]:
    """Offset, time, kind of time, key and value of each record, as they find them."""
    found = []
    for frame in frames(data):
        theirs = peer.LegacyRecordBatch(bytearray(data[frame.position : frame.end]), magic)
        assert theirs.validate_crc()
        found += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in theirs]
    return found


def told(new: Sequence[NewRecord], magic: int, first: int, kind: int = 0) -> list[tuple[Any, ...]]:
    return [
        (first + i, r.timestamp if magic else None, kind if magic else None, r.key, r.value)
        for i, r in enumerate(new)
    ]


def ours(data: bytes) -> list[tuple[int, NewRecord]]:
    return [
        (r.offset, NewRecord(r.value, r.key, r.timestamp))
        for r in records(data, start_offset=0, max_bytes=LIMIT)
    ]


@every_sample
@every_kind
def test_they_read_what_we_write(peer: Any, magic: int, codec: Codec, new: list[NewRecord]) -> None:
    data = encode_set(new, magic=magic, codec=codec, base_offset=500)
    assert their_reading(peer, data, magic) == told(new, magic, 500)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("peer", PEERS)
def test_they_read_log_append_time_that_a_broker_of_ours_sets(peer: Any, codec: Codec) -> None:
    new = samples(5, 20)
    data = bytearray(encode_set(new, magic=1, codec=codec))
    for frame in frames(bytes(data)):
        assign_entry(
            data,
            frame.position,
            offset=40 + frame.last_offset,
            timestamp=1_800_000_000_000,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
        )
    stamped = [NewRecord(r.value, r.key, 1_800_000_000_000) for r in new]
    assert data[17] & LOG_APPEND_TIME_BIT
    assert their_reading(peer, bytes(data), 1) == told(stamped, 1, 40, kind=1)
    assert ours(bytes(data)) == list(enumerate(stamped, 40))
    assert {r.timestamp_type for r in records(data, start_offset=0, max_bytes=LIMIT)} == {
        TimestampType.LOG_APPEND_TIME
    }
