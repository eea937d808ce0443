"""The decompressed records of a v2 batch: bytes to `Record`, and `NewRecord` to bytes.

::

    length:varint attributes:1 timestamp_delta:varlong offset_delta:varint
    key_length:varint key value_length:varint value
    header_count:varint (name_length:varint name value_length:varint value)*

``length`` counts the bytes after it. A length of -1 means null, never for a header's name; Kafka reads every
negative one so. Attributes are 0.
Deltas are relative to the batch's base timestamp and offset. Source: Kafka protocol guide, "Record".

Loops are not split into functions: a call per field would cost more than the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.formats.base import (
    Buffer,
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
    varint_bytes,
    varlong_bytes,
)
from pyspark_kafkalog.types import Header, NewRecord, Record, TimestampType

MIN_RECORD_BYTES = 7  # the smallest record: seven fields of one byte
Fields = tuple[int, int, "bytes | None", "bytes | None", tuple[Header, ...]]
"""Timestamp delta, offset delta, key, value, headers."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()

_TABLE_SIZE = 8192
_VARINTS = [varint_bytes(value) for value in (*range(_TABLE_SIZE), -1)]
"""Precomputed varints of 0.._TABLE_SIZE-1 and, at index -1, of -1."""

_NO_ATTRIBUTES = b"\0"
_NO_HEADERS = _VARINTS[0]
_MAX_INT64 = (1 << 63) - 1
_MIN_INT64 = -(1 << 63)

MOST_NAMED = 1000
"""Records of a refused batch that an error names."""

_NO_KEY = "no key, which a compacted topic requires"

_ONE_BY_ONE, _TOGETHER = 16, 48
"""Records that are checked one by one, before so many are compared with the last of them. After both offset
deltas become longer, and records with them."""

_CONTINUED = bytes(range(128, 256))
"""What the bytes of a varint are, but its last."""


def read_fields(data: bytes, count: int) -> list[Fields]:
    """Fields of the ``count`` records that fill ``data``; both deltas still zigzag coded."""
    found: list[Fields] = []
    headers: tuple[Header, ...]
    pos = 0
    try:
        for _ in range(count):
            if (size := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                size += high - 1 << 7
                pos += 2
            else:
                size, pos = read_uvarlong(data, pos)
            end = pos + (size >> 1)
            pos += 1  # unused attributes
            if (time := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                time += high - 1 << 7
                pos += 2
            else:
                time, pos = read_uvarlong(data, pos)
            if (delta := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                delta += high - 1 << 7
                pos += 2
            else:
                delta, pos = read_uvarlong(data, pos)
            key = value = None
            k, pos = (k, pos + 1) if (k := data[pos]) < 128 else read_uvarint(data, pos)
            if not k & 1:
                key = data[pos : (pos := pos + (k >> 1))]
            if (v := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                v += high - 1 << 7
                pos += 2
            else:
                v, pos = read_uvarint(data, pos)
            if not v & 1:
                value = data[pos : (pos := pos + (v >> 1))]
            headers, pos = ((), pos + 1) if data[pos] == 0 else _read_headers(data, pos)
            if pos != end or (size | delta) & 1:
                raise CorruptMessage(f"record {len(found)} of {count}: its lengths do not add up")
            found.append((time, delta, key, value, headers))
    except IndexError:
        raise CorruptMessage(f"record {len(found)} of {count} is cut short") from None
    if pos != len(data):
        raise CorruptMessage(f"{len(data) - pos} bytes follow the last of {count} records")
    return found


def header_name(raw: bytes) -> str:
    """A header's name as Java decodes it: U+FFFD for invalid UTF-8; one, not up to three, for a surrogate."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, raw).decode("utf-8", "replace")


def _read_headers(data: bytes, pos: int) -> tuple[tuple[Header, ...], int]:
    count, pos = read_varint(data, pos)
    if not 0 <= count <= (len(data) - pos) // 2:
        raise CorruptMessage(f"{count} headers cannot be in {len(data) - pos} bytes")
    headers: list[Header] = []
    for _ in range(count):
        length, pos = read_varint(data, pos)
        if not 0 <= length <= len(data) - pos:
            raise CorruptMessage(f"a header's name of {length} bytes where {len(data) - pos} are left")
        name = header_name(data[pos : pos + length])
        length, pos = read_varint(data, pos + length)
        if length < 0:
            headers.append((name, None))
            continue
        if length > len(data) - pos:
            raise CorruptMessage(f"a header's value of {length} bytes where {len(data) - pos} are left")
        headers.append((name, data[pos : pos + length]))
        pos += length
    return tuple(headers), pos


def parse_records(
    data: bytes,
    count: int,
    *,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_timestamp: int | None = None,
) -> list[Record]:
    """The ``count`` records that fill ``data``.

    ``append_timestamp`` is the time of all records with log append time. A time beyond 64 bits wraps, as in
    Kafka, whose brokers store such batches unchecked. The last record's ``next_offset`` is the next batch's
    start, also after compaction.
    """
    if count * MIN_RECORD_BYTES > len(data):
        raise CorruptMessage(f"{count} records cannot be in {len(data)} bytes")
    timestamp_type = TimestampType.CREATE_TIME if append_timestamp is None else TimestampType.LOG_APPEND_TIME
    timestamp = append_timestamp or 0
    records: list[Record] = []
    previous = -1
    for time, offset_delta, key, value, headers in read_fields(data, count):
        delta = offset_delta >> 1
        if not previous < delta <= last_offset_delta:
            raise CorruptMessage(
                f"offset delta {delta} after {previous} in a batch that ends at {last_offset_delta}"
            )
        previous = delta
        if append_timestamp is None:
            timestamp = base_timestamp + (time >> 1 ^ -(time & 1))
            if not _MIN_INT64 <= timestamp <= _MAX_INT64:
                timestamp = _wrapped(timestamp)
        offset = base_offset + delta
        records.append(Record(offset, offset + 1, timestamp, timestamp_type, key, value, headers))
    if records:
        records[-1] = replace(records[-1], next_offset=base_offset + last_offset_delta + 1)
    return records


def read_times(
    data: Buffer, count: int, *, base_offset: int, last_offset_delta: int, base_timestamp: int
) -> Iterator[tuple[int, int]]:
    """Lazily yield timestamp and offset of each record in ``data``; other fields are not checked."""
    walk = _walk(data, count, base_offset, last_offset_delta, base_timestamp)
    return ((timestamp, offset) for timestamp, offset, _, _ in walk)


def read_messages(
    data: memoryview, count: int, *, base_offset: int, last_offset_delta: int, base_timestamp: int
) -> Iterator[tuple[int, int, memoryview | None, memoryview | None, bool]]:
    """Lazily yield timestamp, offset, key, value (views of ``data``) and whether headers exist."""
    walk = _walk(data, count, base_offset, last_offset_delta, base_timestamp)
    for timestamp, offset, fields, end in walk:
        key, pos = _view(data, fields, end)
        value, pos = _view(data, pos, end)
        if pos >= end:
            raise CorruptMessage(f"the record at offset {offset} ends before its headers")
        has_headers = data[pos] != 0
        if not has_headers and pos + 1 != end:
            raise CorruptMessage(f"the record at offset {offset}: its lengths do not add up")
        yield timestamp, offset, key, value, has_headers


def check_records(
    data: Buffer, pos: int, end: int, count: int, most: int, most_headers: int, *, numbered: bool, keyed: bool
) -> bool:
    """Check the first ``most`` of the ``count`` records that fill ``data`` from ``pos`` to ``end``, at 0.5 us
    each; the others must have room. False if it stopped, to check no more than ``most_headers`` in all.

    ``numbered``: offset deltas must be 0, 1 and so on; then 48 of the same lengths take 5 us in all if
    ``data`` are bytes. ``keyed``: no key may be null. Raises `CorruptMessage`, and `InvalidRecord` for such
    keys.
    """
    checked, number, without_key = min(count, most), 0, list[int]()
    while number < checked:
        stop = min(checked, number + _ONE_BY_ONE) if numbered else checked
        last, pos, most_headers = _check_each(
            data, pos, end, range(number, stop), most_headers, without_key, numbered=numbered, keyed=keyed
        )
        if most_headers < 0:
            return False
        number = stop
        if not numbered or without_key or not isinstance(data, bytes):
            continue
        while number + _TOGETHER <= checked and _are_like(data, last, pos, number):
            size = _TOGETHER * (pos - last)
            number, last, pos = number + _TOGETHER, last + size, pos + size
    if (count - checked) * MIN_RECORD_BYTES > end - pos:
        raise CorruptMessage(f"{count - checked} of {count} records cannot be in {end - pos} bytes")
    if checked == count and pos != end:
        raise CorruptMessage(f"{end - pos} bytes follow the last of {count} records")
    if without_key:
        named = dict.fromkeys(without_key, _NO_KEY)
        raise InvalidRecord(f"record {without_key[0]} of {count} has {_NO_KEY}", named)
    return True


def _are_like(data: bytes, start: int, stop: int, number: int) -> bool:
    """Whether `_TOGETHER` records from ``number`` on are whole and numbered, known from their having the
    lengths of the one before them, at ``start`` to ``stop``, which has no headers.
    """
    size = stop - start
    end = stop + _TOGETHER * size
    if data[stop:end:size] != data[start : start + 1] * _TOGETHER:  # soon said where lengths differ
        return False
    deltas = b"".join(_VARINTS[number : number + _TOGETHER])
    _, attributes = read_uvarint(data, start)
    time = attributes + 1
    _, delta = read_uvarlong(data, time)
    _, key = read_uvarint(data, delta)
    length, pos = read_uvarint(data, key)
    value = pos if length & 1 else pos + (length >> 1)
    key_bytes = range(key, pos)
    length, pos = read_uvarint(data, value)
    no_headers = pos if length & 1 else pos + (length >> 1)
    if no_headers + 1 != stop:
        return False
    for at in (*range(start, attributes), *key_bytes, *range(value, pos), no_headers):
        if data[at + size : end : size] != data[at : at + 1] * _TOGETHER:
            return False
    for at in range(delta, key):
        if data[at + size : end : size] != deltas[at - delta :: key - delta]:
            return False
    for at in range(time, delta - 1):
        if data[at + size : end : size].translate(None, _CONTINUED):
            return False
    return data[delta - 1 + size : end : size].isascii()


def _check_each(
    data: Buffer, pos: int, end: int, numbers: range, most_headers: int, without_key: list[int],
    *, numbered: bool, keyed: bool,
) -> tuple[int, int, int]:  # fmt: skip
    """Start and end of the last of these records and how many headers are still allowed; none were checked
    further if that is negative. Adds to ``without_key`` those that lack a key they need.
    """
    number, start = numbers.start, pos
    try:
        for number in numbers:
            start = pos
            if (size := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                size += high - 1 << 7
                pos += 2
            else:
                size, pos = read_uvarint(data, pos)
            twice_stop = pos + pos + size  # odd for a negative size
            pos += 1  # attributes
            if data[pos] < 128:  # time
                pos += 1
            elif data[pos + 1] < 128:
                pos += 2
            else:
                _, pos = read_varlong(data, pos)
            if (delta := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                delta += high - 1 << 7
                pos += 2
            else:
                delta, pos = read_uvarint(data, pos)
            if (length := data[pos]) < 128:
                pos += 1
            else:
                length, pos = read_uvarint(data, pos)
            if not length & 1:
                pos += length >> 1
            elif keyed and len(without_key) < MOST_NAMED:
                without_key.append(number)
            if (length := data[pos]) < 128:
                pos += 1
            elif (high := data[pos + 1]) < 128:
                length += high - 1 << 7
                pos += 2
            else:
                length, pos = read_uvarint(data, pos)
            if not length & 1:
                pos += length >> 1
            if data[pos] == 0:
                pos += 1
            else:
                headers, pos = _check_headers(data, pos, min(twice_stop // 2, end), most_headers)
                most_headers -= headers
                if most_headers < 0:
                    return start, pos, most_headers
            if pos + pos != twice_stop:
                raise CorruptMessage(f"record {number}: its lengths do not add up")
            if delta != number + number and numbered:
                raise CorruptMessage(f"record {number} has a wrong offset delta")
    except IndexError:
        raise CorruptMessage(f"record {number} is cut short") from None
    return start, pos, most_headers


def _check_headers(data: Buffer, pos: int, end: int, most: int) -> tuple[int, int]:
    """Follow the lengths of a record's headers (0.2 us each) unless there are more than ``most``; returns how
    many there are, and their end.
    """
    count, pos = read_varint(data, pos)
    if not 0 <= count <= max(0, end - pos) // 2:
        raise CorruptMessage(f"{count} headers cannot be in {max(0, end - pos)} bytes")
    if count > most:
        return count, pos
    for _ in range(count):
        length, pos = (size, pos + 1) if (size := data[pos]) < 128 else read_uvarint(data, pos)
        if length & 1:
            raise CorruptMessage("a header has no name")
        pos += length >> 1
        length, pos = (size, pos + 1) if (size := data[pos]) < 128 else read_uvarint(data, pos)
        if not length & 1:
            pos += length >> 1
    return count, pos


def _view(data: memoryview, pos: int, end: int) -> tuple[memoryview | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        return None, pos
    if length > end - pos:
        raise CorruptMessage(f"a field of {length} bytes where {end - pos} are left of its record")
    return data[pos : pos + length], pos + length


def _walk(
    data: Buffer, count: int, base_offset: int, last_offset_delta: int, base_timestamp: int
) -> Iterator[tuple[int, int, int, int]]:
    """Timestamp, offset, key length's position and end of each record."""
    pos, previous, size, number = 0, -1, len(data), 0
    try:
        for number in range(count):
            length, pos = (v >> 1 ^ -(v & 1), pos + 1) if (v := data[pos]) < 128 else read_varint(data, pos)
            end = pos + length
            pos += 1  # attributes
            time, pos = (v >> 1 ^ -(v & 1), pos + 1) if (v := data[pos]) < 128 else read_varlong(data, pos)
            delta, pos = (v >> 1 ^ -(v & 1), pos + 1) if (v := data[pos]) < 128 else read_varint(data, pos)
            if not pos < end <= size:
                raise CorruptMessage(f"record {number} of {count}: its lengths do not add up")
            if not previous < delta <= last_offset_delta:
                raise CorruptMessage(
                    f"offset delta {delta} after {previous} in a batch that ends at {last_offset_delta}"
                )
            yield _wrapped(base_timestamp + time), base_offset + delta, pos, end
            previous, pos = delta, end
    except IndexError:
        raise CorruptMessage(f"record {number} of {count} is cut short") from None
    if pos != size:
        raise CorruptMessage(f"{size - pos} bytes follow the last of {count} records")


def _wrapped(timestamp: int) -> int:
    return (timestamp - _MIN_INT64) % (1 << 64) + _MIN_INT64


def encode_record(record: NewRecord, base_timestamp: int, offset_delta: int) -> bytes:
    table, size = _VARINTS, _TABLE_SIZE
    key, value, time = record.key, record.value, record.timestamp - base_timestamp
    key_length = -1 if key is None else len(key)
    value_length = -1 if value is None else len(value)
    body = b"".join(
        (
            _NO_ATTRIBUTES,
            table[time] if 0 <= time < size else _timestamp_delta(record.timestamp, base_timestamp),
            table[offset_delta] if offset_delta < size else varint_bytes(offset_delta),
            table[key_length] if key_length < size else varint_bytes(key_length),
            key or b"",
            table[value_length] if value_length < size else varint_bytes(value_length),
            value or b"",
            _encode_headers(record.headers) if record.headers else _NO_HEADERS,
        )
    )
    length = len(body)
    return (table[length] if length < size else varint_bytes(length)) + body


def _timestamp_delta(timestamp: int, base_timestamp: int) -> bytes:
    check_timestamp(timestamp)
    return varlong_bytes(timestamp - base_timestamp)


def check_timestamp(timestamp: int) -> None:
    if not _MIN_INT64 <= timestamp <= _MAX_INT64:
        raise InvalidRecord(f"timestamp {timestamp} does not fit 64 bits")


def _encode_headers(headers: Sequence[Header]) -> bytes:
    out = bytearray(varint_bytes(len(headers)))
    for name, value in headers:
        try:
            text = name.encode()
        except UnicodeEncodeError as e:
            raise InvalidRecord(f"header name {name!r} is not UTF-8: {e.reason}") from None
        out += varint_bytes(len(text))
        out += text
        out += varint_bytes(-1 if value is None else len(value))
        out += value or b""
    return bytes(out)
