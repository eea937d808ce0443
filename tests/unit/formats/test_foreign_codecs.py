"""kafka-python and kio read what we write and write what we read: oracles in both directions."""

from __future__ import annotations

import datetime
import io
import random
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from pyspark_kafkalog.formats.batch import (
    ControlType,
    decode_records,
    encode_batch,
    encode_control,
    read_header,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import Header, NewRecord, Record, TimestampType

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


def written(found: Sequence[Record]) -> list[NewRecord]:
    return [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in found]


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


@pytest.mark.long("many megabytes, or many cases")
@every_sample
@every_codec
def test_kafka_python_reads_what_we_write(new: list[NewRecord], codec: Codec) -> None:
    data = encode_batch(
        new,
        codec=codec,
        base_offset=500,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
        transactional=True,
    )
    theirs = DefaultRecordBatch(data)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.last_offset, theirs.next_offset) == (
        500,
        499 + len(new),
        500 + len(new),
    )
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (7, 1, 3)
    assert theirs.is_transactional
    assert not theirs.is_control_batch
    assert theirs.compression_type == codec
    assert theirs.max_timestamp == max(r.timestamp for r in new)
    found = list(theirs)
    assert [r.offset for r in found] == list(range(500, 500 + len(new)))
    assert [NewRecord(r.value, r.key, r.timestamp, tuple(r.headers)) for r in found] == new


@pytest.mark.long("many megabytes, or many cases")
@every_sample
@every_codec
def test_we_read_what_kafka_python_writes(new: list[NewRecord], codec: Codec) -> None:
    data = kafka_python_batch(new, codec, (9, 2, 11), txn=True)
    header = read_header(data)
    # kafka-python leaves a batch as it is where compression would not make it smaller.
    assert header.codec in (codec, Codec.NONE)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 11)
    assert header.is_transactional
    assert header.max_timestamp == max(r.timestamp for r in new)
    found = decode_records(data, 0, header, LIMIT)
    assert written(found) == new
    assert [r.offset for r in found] == list(range(len(new)))


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


def seconds(new: Sequence[NewRecord]) -> list[NewRecord]:
    """The records with whole seconds for their times, rising: kio keeps no more."""
    return [NewRecord(r.value, r.key, 1_700_000_000_000 + 1000 * i, r.headers) for i, r in enumerate(new)]


def kio_headers(headers: Sequence[Header]) -> tuple[RecordHeader, ...]:
    return tuple(RecordHeader(key=name.encode(), value=value) for name, value in headers)


def kio_time(timestamp: int) -> TZAwareMicros:
    return TZAwareMicros.parse(datetime.datetime.fromtimestamp(timestamp / 1000, datetime.timezone.utc))


@pytest.mark.parametrize("new", [seconds(samples(5)), seconds(samples(6, 2))], ids=len)
def test_kio_reads_what_we_write(new: list[NewRecord]) -> None:
    data = encode_batch(new, base_offset=30, producer_id=7, producer_epoch=1, base_sequence=3, leader_epoch=6)
    theirs, size = read_batch(data, 0)
    header: Any = read_header(data)
    assert size == len(data)
    for field in (
        "base_offset", "batch_length", "partition_leader_epoch", "crc", "attributes", "last_offset_delta",
        "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence",
    ):  # fmt: skip
        assert getattr(theirs, field) == getattr(header, field), field
    assert [r.offset for r in theirs.records] == list(range(30, 30 + len(new)))
    assert [(r.value, r.key, r.headers) for r in theirs.records] == [
        (r.value, r.key, kio_headers(r.headers)) for r in new
    ]
    assert [r.timestamp for r in theirs.records] == [kio_time(r.timestamp) for r in new]


@pytest.mark.parametrize("new", [seconds(samples(7)), seconds(samples(8, 2))], ids=len)
def test_we_read_what_kio_writes_and_write_the_same(new: list[NewRecord]) -> None:
    out = io.BytesIO()
    write_batch(
        out,
        NewRecordBatch(
            producer_id=i64(12),
            producer_epoch=i16(3),
            base_sequence=i32(4),
            attributes=i16(0),
            partition_leader_epoch=i32(2),
            records=tuple(
                KioRecord(
                    attributes=i8(0),
                    timestamp=kio_time(r.timestamp),
                    offset=i64(70 + i),
                    key=r.key,
                    value=r.value,
                    headers=kio_headers(r.headers),
                )
                for i, r in enumerate(new)
            ),
        ),
    )
    data = out.getvalue()
    found = decode_records(data, 0, read_header(data), LIMIT)
    assert written(found) == new
    assert found[0].offset == 70
    ours = encode_batch(
        new, base_offset=70, producer_id=12, producer_epoch=3, base_sequence=4, leader_epoch=2
    )
    assert ours == data
