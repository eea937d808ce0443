"""Arrow types of Spark's Kafka rows, and arrays made by `Array.from_buffers`: `pyarrow.array`, `scalar` and
`repeat` import pandas if it is installed, which costs each new worker process a quarter of a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.record import header_name

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "broker")
"""All columns in their usual order; `broker` is the id of the broker that answered."""

INNER_INDEX = "innerIndex"

COLUMNS_07 = (*COLUMNS, INNER_INDEX)
"""Columns of Kafka 0.7: last, a message's index in its compressed entry. Key, time and headers are null."""

BINARY, STRING, INT32, INT64 = pa.binary(), pa.string(), pa.int32(), pa.int64()
TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([pa.field("key", STRING), pa.field("value", BINARY)])
HEADERS = pa.list_(pa.field("element", HEADER))

_TYPES = {
    "key": BINARY, "value": BINARY, "topic": STRING, "partition": INT32, "offset": INT64,
    "timestamp": TIMESTAMP, "timestampType": INT32, "headers": HEADERS, "broker": INT32,
    INNER_INDEX: INT32,
}  # fmt: skip


def arrow_schema(columns: Sequence[str], known: Sequence[str] = COLUMNS) -> pa.Schema:
    """The schema that PySpark makes of these columns' Spark types, the only one Spark accepts."""
    return _schema(tuple(columns), tuple(known))


@lru_cache(64)
def _schema(columns: tuple[str, ...], known: tuple[str, ...]) -> pa.Schema:
    """Cached: each of thousands of partitions has a decoder."""
    if not columns:
        raise InvalidConfig(f"at least one column is needed, of: {', '.join(known)}")
    for at, name in enumerate(columns):
        if name not in known:
            raise InvalidConfig(f"no column {name!r}; there are: {', '.join(known)}")
        if name in columns[:at]:
            raise InvalidConfig(f"column {name!r} is asked for twice")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def numbers(kind: pa.DataType, values: array[int]) -> pa.Array:
    """A column without nulls; ``values`` must be as wide as ``kind``."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


def blobs(values: Sequence[bytes | None], kind: pa.DataType = BINARY) -> pa.Array:
    """A column of bytes or UTF-8 strings; None is null. Below 2 GiB in total."""
    nulls = values.count(None)
    content = [value or b"" for value in values] if nulls else values
    starts = array("i", accumulate(map(len, content), initial=0))  # type: ignore[arg-type]
    data = b"".join(content)  # type: ignore[arg-type]
    valid = _valid([value is not None for value in values]) if nulls else None
    buffers = [valid, pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(values), buffers, nulls)


def header_names(raw: Sequence[bytes]) -> pa.Array:
    """A column of strings; invalid UTF-8 becomes U+FFFD."""
    return blobs([name if name.isascii() else header_name(name).encode() for name in raw], STRING)


def header_lists(rows: Sequence[Sequence[tuple[bytes, bytes | None]]]) -> pa.Array:
    """A column of headers; a record without headers has null, as in Spark's rows, not an empty list."""
    pairs = [pair for row in rows for pair in row]
    names = header_names([name for name, _ in pairs])
    starts = array("i", accumulate(map(len, rows), initial=0))
    nulls = sum(not row for row in rows)
    valid = _valid([bool(row) for row in rows]) if nulls else None
    contents = blobs([value for _, value in pairs])
    return headers(len(rows), valid, nulls, pa.py_buffer(starts), names, contents)


def headers(
    rows: int, valid: pa.Buffer | None, nulls: int, starts: pa.Buffer, names: pa.Array, contents: pa.Array
) -> pa.Array:
    pairs = pa.Array.from_buffers(HEADER, len(names), [None], 0, children=[names, contents])
    return pa.Array.from_buffers(HEADERS, rows, [valid, starts], nulls, children=[pairs])


class Constant:
    """A column with one value, made for the longest request. *Not thread-safe: belongs to one decoder.*"""

    def __init__(self, value: str | int | None, kind: pa.DataType = INT32) -> None:
        """``value``: a string, a 32-bit number, or None for nulls of type ``kind``."""
        self._value, self._kind = value, kind
        self._columns: list[pa.Array] = []
        """The longest, and the last one that was asked for."""

    def rows(self, count: int) -> pa.Array:
        if not self._columns or count > len(self._columns[0]):
            self._columns = [self._made(count)]
        if count != len(self._columns[-1]):
            self._columns = [self._columns[0], self._columns[0].slice(0, count)]
        return self._columns[-1]

    def _made(self, count: int) -> pa.Array:
        if self._value is None:
            return pa.nulls(count, self._kind)
        if isinstance(self._value, int):
            return numbers(INT32, array("i", [self._value]) * count)
        return blobs([self._value.encode()] * count, STRING)


def _valid(present: Sequence[bool]) -> pa.Buffer:
    """The validity bitmap, lowest bit first."""
    bits = "".join("1" if here else "0" for here in reversed(present))
    return pa.py_buffer(int(bits, 2).to_bytes((len(present) + 7) // 8, "little"))
