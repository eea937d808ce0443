"""Answers to fetches that are damaged, or that claim too much, from either engine."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.columnar.decoder import COLUMNS, RecordBatchDecoder
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig
from pyspark_kafkalog.formats.base import varint_bytes
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import ENGINES, decode, good_record, raw_batch, raw_record

pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"\x80", "a variable-length number is cut short or too long"),
        (raw_record(length=b"\xff\xff\xff\xff\x10"), "a variable-length number is cut short or too long"),
        (raw_record(length=-1), "its length -1 does not fit its batch"),
        (raw_record(length=1000), "its length 1000 does not fit its batch"),
        (raw_record(length=(1 << 31) - 1), "its length 2147483647 does not fit"),
        (raw_record(length=5), "a variable-length number is cut short or too long"),
        (raw_record(time=b"\xff" * 10 + b"\1"), "a variable-length number is cut short or too long"),
        (raw_record(delta=b"\x80" * 5 + b"\0"), "a variable-length number is cut short or too long"),
        (raw_record(key=(50, b"")), "a length of 50 does not fit the record"),
        (raw_record(value=((1 << 31) - 1, b"")), "a length of 2147483647 does not fit"),
        (raw_record(headers=varint_bytes(-1)), "-1 headers cannot be in the bytes left"),
        (raw_record(headers=varint_bytes((1 << 31) - 1)), "2147483647 headers cannot be"),
        (raw_record(headers=varint_bytes(1) + varint_bytes(-1) + b"\1"), "a length of -1 does not fit"),
        (raw_record(headers=varint_bytes(1) + b"\0" + varint_bytes(9)), "a length of 9 does not fit"),
        (raw_record(headers=b"\0xyz"), "3 bytes are left over in it"),
        (raw_record(delta=-1), "its offset delta -1 does not rise or leaves the batch"),
        (raw_record(delta=9), "its offset delta 9 does not rise or leaves the batch"),
        (raw_record(delta=0), "its offset delta 0 does not rise or leaves the batch"),
    ],
)
def test_a_bad_record_is_named_and_described(engine: str, record: bytes, text: str) -> None:
    data = raw_batch(good_record(0) + record + bytes(20), 3, base_offset=70)
    for columns in (COLUMNS, ("offset",)):
        with pytest.raises(CorruptMessage) as e:
            decode(data, engine, columns=columns)
        assert f"t-0, record 1 of 3 in the batch at offset 70: {text}" in str(e.value)


def test_every_negative_length_is_a_null(engine: str) -> None:
    headers = varint_bytes(1) + b"\0" + varint_bytes(-3)
    record = raw_record(key=(-2, b""), value=(-(1 << 31), b""), headers=headers)
    (found,) = decode(raw_batch(record, 1), engine, columns=("key", "value", "headers")).batches
    assert found.to_pylist() == [{"key": None, "value": None, "headers": [{"key": "", "value": None}]}]


def test_bytes_after_the_last_record_are_a_fault(engine: str) -> None:
    with pytest.raises(CorruptMessage, match=r"record 1 of 1 .* 2 bytes follow the last record"):
        decode(raw_batch(good_record() + b"\0\0", 1), engine)
    with pytest.raises(CorruptMessage, match=r"record 0 of 0 .* 9 bytes follow"):
        decode(raw_batch(bytes(9), 0), engine)


def test_a_bad_record_outside_the_range_is_still_a_fault_of_its_batch(engine: str) -> None:
    data = raw_batch(good_record(0) + raw_record(length=-1, delta=1), 2)
    with pytest.raises(CorruptMessage, match="record 1 of 2"):
        decode(data, engine, end=1)


def test_garbage_between_batches_is_a_fault(engine: str) -> None:
    with pytest.raises(CorruptMessage, match=r"t-0, reading on from offset 2: impossible"):
        decode(encode_batch([NewRecord(b"0"), NewRecord(b"1")]) + bytes(30), engine)


def test_engines_are_had_by_name(engine: str) -> None:
    settings: dict[str, Any] = {"topic": "t", "partition": 0, "columns": ["key"]}
    assert RecordBatchDecoder(**settings, engine=engine).engine == engine
    with pytest.raises(InvalidConfig, match="allowed: auto, numba, plain"):
        RecordBatchDecoder(**settings, engine=engine + "x")


def test_a_count_that_cannot_be_takes_no_memory(engine: str) -> None:
    with pytest.raises(CorruptMessage, match="2000000000 records cannot be in 15 bytes"):
        decode(raw_batch(good_record(), 2_000_000_000), engine)
