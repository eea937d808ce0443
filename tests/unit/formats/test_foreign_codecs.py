"""kafka-python and kio read what we write and write what we read: oracles in both directions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.formats.batch import (
    ControlType,
    encode_batch,
    encode_control,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import Header, NewRecord, TimestampType

LIMIT = 1 << 24


def samples(seed: int, count: int = 400) -> list[NewRecord]:
    rng = random.Random(seed)

    def blob() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(200)), bytes(rng.randrange(9000))])

    def header() -> Header:
        return rng.choice(["h", "name", "", "größe"]), rng.choice([None, b"", rng.randbytes(5)])

    time = 1_700_000_000_000
    return [
        NewRecord(
            blob(),
            blob(),
            time + rng.randrange(-5000, 90_000),
            tuple(header() for _ in range(rng.randrange(4))),
        )
        for _ in range(count)
    ]


SAMPLES = [samples(1), samples(2, 1), [NewRecord(None)], [NewRecord(b"x" * 100, b"k")] * 9000]
every_sample = pytest.mark.parametrize("new", SAMPLES, ids=len)
every_codec = pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())


def kafka_python_batch(new: Sequence[NewRecord], codec: Codec, producer: Sequence[int], txn: bool) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=txn,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=LIMIT,
    )
    for i, record in enumerate(new):
        builder.append(i, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@every_sample
def test_uncompressed_our_batch_is_kafka_python_s_byte_for_byte(new: list[NewRecord]) -> None:
    ours = encode_batch(new, producer_id=4, producer_epoch=0, base_sequence=1, leader_epoch=0)
    assert ours[16:] == kafka_python_batch(new, Codec.NONE, (4, 0, 1), txn=False)[16:]


@every_codec
def test_kafka_python_walks_several_of_our_batches(codec: Codec) -> None:
    log = b"".join(
        (
            encode_batch(samples(3, 50), codec=codec),
            encode_control(ControlType.ABORT, producer_id=5, producer_epoch=0, timestamp=1, base_offset=50),
            encode_batch(
                samples(4, 9), codec=codec, base_offset=51, timestamp_type=TimestampType.LOG_APPEND_TIME
            ),
        )
    )
    theirs, seen = MemoryRecords(log), []
    while (batch := theirs.next_batch()) is not None:
        if batch.is_control_batch:
            (marker,) = list(batch)
            assert marker.abort
            continue
        seen += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers)) for r in batch]
    ours = [
        (r.offset, r.timestamp, int(r.timestamp_type), r.key, r.value, r.headers)
        for r in records(log, start_offset=0, max_bytes=LIMIT)
    ]
    assert ours == seen
    assert len(ours) == 59
