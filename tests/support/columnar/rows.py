"""Batches with records of any bytes, and rows as tuples, for the tests of the columnar layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS, COLUMNS_07
from pyspark_kafkalog.columnar.decoder import KAFKA_07, Decoded, RecordBatchDecoder
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.base import varint_bytes, varlong_bytes
from pyspark_kafkalog.formats.batch import LOG_APPEND_TIME_BIT, seal_batch
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.formats.record import encode_record
from pyspark_kafkalog.types import NewRecord

ENGINES = ("numba", "plain")
FOREVER = (1 << 63) - 1
US = pa.timestamp("us", tz="UTC")


def decode(
    data: bytes | memoryview,
    engine: str = "plain",
    *,
    start: int = 0,
    end: int = FOREVER,
    columns: Sequence[str] = COLUMNS,
    aborted: Sequence[tuple[int, int]] | None = (),
    expected: ExpectedOffsets = ExpectedOffsets(),  # noqa: B008
    **settings: Any,
) -> Decoded:
    """The answer ``data`` of partition t-0, all columns unless said otherwise, broker 7."""
    settings = {"broker": 7, **settings}
    decoder = RecordBatchDecoder(topic="t", partition=0, columns=columns, engine=engine, **settings)  # type: ignore[arg-type]
    return decoder.decode(memoryview(data), start, end, aborted, expected)


def outcome(data: bytes, engine: str, columns: Sequence[str] = COLUMNS, **settings: Any) -> Decoded | str:
    """The rows, or the error's type and text."""
    try:
        return decode(data, engine, columns=columns, **settings)
    except KafkaError as e:
        return f"{type(e).__name__}: {e}"


def decode_07(
    data: bytes | memoryview,
    engine: str = "plain",
    *,
    start: int = 0,
    end: int = FOREVER,
    columns: Sequence[str] = COLUMNS_07,
    **settings: Any,
) -> Decoded:
    """The 0.7 answer ``data`` of partition t-0, whose first byte has offset ``start``, of broker 7."""
    decoder = RecordBatchDecoder(
        KAFKA_07, topic="t", partition=0, columns=columns, engine=engine, broker=7, **settings
    )  # type: ignore[arg-type]
    return decoder.decode(memoryview(data), start, end)


def column(decoded: Decoded, name: str) -> list[Any]:
    """One column of all record batches; timestamps in microseconds."""
    values: list[Any] = []
    for batch in decoded.batches:
        found = batch.column(name)
        values += (found.cast(pa.int64()) if found.type == US else found).to_pylist()
    return values


def offsets(decoded: Decoded) -> list[int]:
    return column(decoded, "offset")


def raw_batch(
    block: bytes,
    count: int,
    *,
    last_delta: int | None = None,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_time: int | None = None,
    attributes: int = 0,
) -> bytes:
    """A batch with a right checksum around whatever ``block`` is."""
    return seal_batch(
        block,
        attributes=attributes | (LOG_APPEND_TIME_BIT if append_time is not None else 0),
        last_offset_delta=max(count - 1, 0) if last_delta is None else last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=append_time if append_time is not None else base_timestamp,
        record_count=count,
        base_offset=base_offset,
    )


def raw_record(
    *,
    length: int | bytes | None = None,
    time: int | bytes = 0,
    delta: int | bytes = 0,
    key: tuple[int, bytes] = (-1, b""),
    value: tuple[int, bytes] = (-1, b""),
    headers: bytes = b"\0",
) -> bytes:
    """A record whose numbers say what they are told to; as bytes they stand as given."""
    body = b"".join(
        (
            b"\0",
            time if isinstance(time, bytes) else varlong_bytes(time),
            delta if isinstance(delta, bytes) else varint_bytes(delta),
            varint_bytes(key[0]) + key[1],
            varint_bytes(value[0]) + value[1],
            headers,
        )
    )
    if isinstance(length, bytes):
        return length + body
    return varint_bytes(len(body) if length is None else length) + body


def good_record(delta: int = 0, value: bytes = b"value", key: bytes | None = b"key") -> bytes:
    return encode_record(NewRecord(value, key, 0), 0, delta)
