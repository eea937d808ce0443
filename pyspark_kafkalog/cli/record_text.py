"""Records as text: values, or JSON lines that can be read back.

::

    {"topic": "flights", "partition": 0, "offset": 7, "timestamp": 1700000000000,
     "key": "JFK", "value": {"base64": "AP8="}, "headers": [["trace", "1"]]}

Keys, values and header values are text if they are UTF-8, else an object with the field ``base64``; null is
null. ``timestamp`` is in milliseconds, null if absent. ``headers`` is a list of pairs: names may repeat.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pyspark_kafkalog.cli.arguments import separator_bytes
from pyspark_kafkalog.types import NO_TIMESTAMP, Header, Record, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord

_WRITTEN = frozenset({"partition", "timestamp", "key", "value", "headers"})
_IGNORED = frozenset({"topic", "offset"})  # fields written by consume that produce ignores

_BASE64 = "base64"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


class Draft(NamedTuple):
    """A record to produce; the producer fills in a partition or timestamp that is None."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


class Format(str, Enum):
    VALUE = "value"
    RAW = "raw"
    JSON = "json"


RecordText = Callable[[TopicPartition, "Record | ConsumerRecord"], bytes]


class RecordOutput:
    """*Not thread-safe.* Writes and counts records, at most ``limit``."""

    def __init__(self, file: BinaryIO, write: RecordText, limit: int | None) -> None:
        self._file, self._write, self._limit = file, write, limit
        self.records = self.bytes = 0

    @property
    def room(self) -> int | None:
        return None if self._limit is None else self._limit - self.records

    @property
    def full(self) -> bool:
        return self._limit is not None and self.records >= self._limit

    def add(self, tp: TopicPartition, records: Sequence[Record | ConsumerRecord]) -> None:
        if self._limit is not None:
            records = records[: self._limit - self.records]
        data = b"".join([self._write(tp, record) for record in records])
        self._file.write(data)
        self.records += len(records)
        self.bytes += len(data)

    def flush(self) -> None:
        self._file.flush()


def writer(form: Format, key_separator: str | None) -> RecordText:
    if form is Format.JSON:
        return lambda tp, record: to_json(tp, record).encode() + b"\n"
    if form is Format.RAW:
        return lambda _, record: record.value or b""
    if key_separator is None:
        return lambda _, record: (record.value or b"") + b"\n"
    between = separator_bytes(key_separator)
    return lambda _, record: (record.key or b"") + between + (record.value or b"") + b"\n"


def to_json(tp: TopicPartition, record: Record | ConsumerRecord) -> str:
    return _encode(
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp == NO_TIMESTAMP else record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
    )


def from_json(line: bytes) -> Draft:
    """Parse `to_json`'s output, ignoring topic and offset. Raises `ValueError` for an invalid line."""
    try:
        fields = json.loads(line)
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8: {e.reason} at byte {e.start}") from None
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at column {e.colno}") from None
    except RecursionError:
        raise ValueError("not a record: nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, not {_kind(fields)}")
    unknown = sorted(fields.keys() - _WRITTEN - _IGNORED)
    if unknown:
        allowed = ", ".join(sorted(_WRITTEN))
        raise ValueError(f"unknown field {unknown[0]!r}; allowed: {allowed} (topic and offset are ignored)")
    if "value" not in fields:
        raise ValueError('"value" is missing; write null for a record without a value')
    return Draft(
        _bytes("value", fields["value"]),
        _bytes("key", fields.get("key")),
        _number("partition", fields.get("partition"), 0, (1 << 31) - 1),
        _number("timestamp", fields.get("timestamp"), -(1 << 63), (1 << 63) - 1),
        _headers(fields.get("headers")),
    )


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(data).decode("ascii")}


def _bytes(field: str, given: Any) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{field} has a lone surrogate, which is not valid text") from None
    if isinstance(given, dict) and list(given) == [_BASE64] and isinstance(given[_BASE64], str):
        try:
            return base64.b64decode(given[_BASE64], validate=True)
        except (binascii.Error, ValueError) as e:
            raise ValueError(f"{field} is not base64: {e}") from None
    raise ValueError(f'{field} is {_kind(given)}; allowed: text, null, {{"{_BASE64}": "..."}}')


def _number(field: str, given: Any, low: int, high: int) -> int | None:
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        raise ValueError(f"{field} is {_kind(given)}; allowed: null, {low} to {high}")
    return given


def _headers(given: Any) -> list[Header]:
    if given is None:
        return []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise ValueError(f"headers are {_kind(given)}; allowed: a list of [name, value], or an object")
    found: list[Header] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"a header is {_kind(pair)}; allowed: [name, value]")
        found.append((pair[0], _bytes(f"header {pair[0]!r}", pair[1])))
    return found


def _kind(given: Any) -> str:
    text = json.dumps(given)
    return text if len(text) <= 40 else f"{text[:37]}..."
