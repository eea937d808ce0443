"""Encodes records as record batches, or as message sets for Kafka before 0.11.

An open batch holds lists of values, keys, times and headers, encoded in one loop when it is sent: 140 ns for
a value of 100 bytes, a tenth of what a `NewRecord` for each would cost (benchmarks/pipeline.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.config.producer_config import MAGICS, ProducerConfig
from pyspark_kafkalog.errors import InvalidRecord, UnsupportedCompression, UnsupportedVersion
from pyspark_kafkalog.formats.base import Buffer, varint_bytes
from pyspark_kafkalog.formats.batch import HEADER_SIZE, TRANSACTIONAL_BIT, seal_batch
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import MIN_ENTRY_BYTES, encode_set
from pyspark_kafkalog.formats.record import encode_record
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NO_TIMESTAMP, Header, NewRecord

_VARINTS = [varint_bytes(value) for value in range(8192)]
"""Varints of 0, 1, ...; grows as needed up to `_MAX_TABLE`."""

_NULL = varint_bytes(-1)
_KEYLESS = [_NULL + length for length in _VARINTS]  # a null key and the value's length, by that length
_growing = threading.Lock()
"""Guards the growth of both tables; readers need no lock, because they never shrink."""

_MAX_TABLE = 1 << 17
_MOST_OVERHEAD = 32  # more than all fields besides key and value take if every number is in the table
BATCH_HEADER_BYTES = HEADER_SIZE

SMALL_CONTENT = 4096
SMALL_OVERHEAD, BIG_OVERHEAD = 16, 24
"""Bounds for a record besides key and value (below and above `SMALL_CONTENT` bytes), without headers."""

OWN_TIME_BYTES = 6  # added if the caller chose the time: such times can be far apart within a batch
_BATCHES_SINCE = 3  # before this version Produce carries only message sets, then only record batches
_ZSTD_SINCE = 7
_TIMESTAMPS_SINCE = 2
_TIMESTAMP_BYTES = 8
_LAST_OLD_FETCH = 3
"""A version of Fetch. Kafka 4 supports neither it nor Produce 0-2, but must advertise the latter, or
librdkafka would not compress (KAFKA-18659)."""

Values: TypeAlias = "Sequence[bytes | None]"
Times: TypeAlias = Sequence[int]
HeaderLists: TypeAlias = Sequence[Sequence[Header]]
Numbering: TypeAlias = tuple[int, int, int]  # producer id, epoch and base sequence, or `NOBODY`
NOBODY = (-1, -1, -1)  # producer id, epoch and base sequence if there is no producer id


def record_size_bound(content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:
    """Bound in bytes for an uncompressed record; ``own_time``: the caller chose the timestamp."""
    size = content_bytes + (SMALL_OVERHEAD if content_bytes < SMALL_CONTENT else BIG_OVERHEAD)
    if own_time:
        size += OWN_TIME_BYTES
    for name, value in headers:
        size += 4 * len(name) + 10 + (len(value) if value is not None else 0)
    return size


def own_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    own = []
    for header in headers:
        try:
            name, value = header
        except (TypeError, ValueError):
            raise TypeError(f"headers must be pairs of name and value, not {header!r}") from None
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as e:
                raise InvalidRecord(f"header name {name!r} is not UTF-8: {e.reason}") from None
        own.append((name, as_bytes("a header's value", value)))
    return tuple(own)


def as_bytes(what: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}")


def encode_block(values: Values, keys: Values | None, times: Times, headers: HeaderLists | None) -> bytes:
    """The records' uncompressed bytes; the first time is the base. None: no record has a key or headers."""
    if headers is None and _fits_table(values, keys, times):
        return _with_keys(values, keys, times) if keys is not None else _without_keys(values, times)
    keys = keys if keys is not None else [None] * len(values)
    headers = headers if headers is not None else [()] * len(values)
    rows = zip(values, keys, times, headers, strict=True)
    return b"".join(
        encode_record(NewRecord(value, key, time, tuple(own)), times[0], delta)
        for delta, (value, key, time, own) in enumerate(rows)
    )


def _fits_table(values: Values, keys: Values | None, times: Times) -> bool:
    """Whether the table, extended if needed, has every length and delta, and no value is null."""
    if None in values or min(times) < times[0]:
        return False
    longest = max(map(len, values))  # type: ignore[arg-type]
    if keys is not None:
        longest += max((len(key) for key in keys if key is not None), default=0)
    needed = max(longest + _MOST_OVERHEAD, len(values), max(times) - times[0] + 1)
    if needed > _MAX_TABLE:
        return False
    if needed > len(_VARINTS):
        _grow_table(1 << (needed - 1).bit_length())
    return True


def _grow_table(size: int) -> None:
    with _growing:
        more = [varint_bytes(value) for value in range(len(_VARINTS), size)]
        _KEYLESS.extend(_NULL + length for length in more)
        _VARINTS.extend(more)


def _without_keys(values: Values, times: Times) -> bytes:
    varints, keyless, base = _VARINTS, _KEYLESS, times[0]
    pieces: list[bytes | None] = []
    last = None
    start, rest = b"", 0
    for offset, value, time in zip(varints, values, times):  # noqa: B905  (the table is longer)
        if time != last:
            # Many records share a millisecond, so reuse their first bytes.
            last, start = time, b"\0" + varints[time - base]
            rest = len(start) + 1
        size = len(value)  # type: ignore[arg-type]
        length = keyless[size]
        pieces += (varints[size + rest + len(offset) + len(length)], start, offset, length, value, b"\0")
    return b"".join(pieces)  # type: ignore[arg-type]


def _with_keys(values: Values, keys: Values, times: Times) -> bytes:
    varints, base = _VARINTS, times[0]
    pieces: list[bytes | None] = []
    last = None
    start = b""
    for offset, value, key, time in zip(varints, values, keys, times):  # noqa: B905  (the table is longer)
        if time != last:
            last, start = time, b"\0" + varints[time - base]
        size = len(value)  # type: ignore[arg-type]
        if key is None:
            front = start + offset + _NULL
        else:
            front = start + offset + varints[len(key)] + key
        length = varints[size]
        pieces += (varints[len(front) + len(length) + size + 1], front, length, value, b"\0")
    return b"".join(pieces)  # type: ignore[arg-type]


class Encoding(Protocol):
    """*Thread-safe: immutable.* A message format with its codec and Produce version."""

    small_overhead: int
    """Bound for a record without headers, besides key and value of less than `SMALL_CONTENT` bytes."""

    has_headers: bool

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int: ...

    def kept_times(self, times: list[int]) -> list[int]:
        """The timestamps, or none where the format lacks them."""

    def encode(
        self,
        values: Values,
        keys: Values | None,
        times: Times,
        headers: HeaderLists | None,
        producer: Numbering,
    ) -> bytes:
        """Encode one or more records. ``producer`` is id, epoch and base sequence, or `NOBODY`."""

    def produce_version(self, connection: Connection) -> int:
        """Produce version for a broker. Raises `UnsupportedVersion`."""


class RecordBatches:
    """*Thread-safe.* Format v2."""

    small_overhead = SMALL_OVERHEAD
    has_headers = True

    def __init__(self, codec: Codec, level: int | None, *, transactional: bool = False) -> None:
        self._codec, self._level = codec, level
        self._attributes = int(codec) | (TRANSACTIONAL_BIT if transactional else 0)

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:
        return record_size_bound(content_bytes, headers, own_time)

    def kept_times(self, times: list[int]) -> list[int]:
        return times

    def encode(
        self,
        values: Values,
        keys: Values | None,
        times: Times,
        headers: HeaderLists | None,
        producer: Numbering,
    ) -> bytes:
        return self.sealed([encode_block(values, keys, times, headers)], times, producer)

    def sealed(self, blocks: Sequence[Buffer], times: Times, producer: Numbering) -> bytes:
        """The batch around ``blocks`` of encoded records with these times."""
        if self._codec is not Codec.NONE:
            blocks = [compress(self._codec, b"".join(blocks), self._level)]
        return seal_batch(
            *blocks,
            attributes=self._attributes,
            last_offset_delta=len(times) - 1,
            base_timestamp=times[0],
            max_timestamp=max(times),
            producer=producer,
            record_count=len(times),
        )

    def produce_version(self, connection: Connection) -> int:
        return batch_version(connection, self._codec)


class MessageSets:
    """*Thread-safe.* Formats v0 and v1: an entry per record, or one compressed wrapper; offsets 0, 1, ..."""

    has_headers = False

    def __init__(self, magic: int, codec: Codec, level: int | None) -> None:
        self._magic, self._codec, self._level = magic, codec, level
        self.small_overhead = MIN_ENTRY_BYTES + _TIMESTAMP_BYTES * magic

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:  # noqa: ARG002
        return content_bytes + self.small_overhead

    def kept_times(self, times: list[int]) -> list[int]:
        return times if self._magic else [NO_TIMESTAMP] * len(times)

    def encode(
        self,
        values: Values,
        keys: Values | None,
        times: Times,
        headers: HeaderLists | None,  # noqa: ARG002  (refused in send)
        producer: Numbering,  # noqa: ARG002
    ) -> bytes:
        rows = zip(values, keys if keys is not None else [None] * len(values), times, strict=True)
        records = [NewRecord(value, key, time) for value, key, time in rows]
        return encode_set(records, magic=self._magic, codec=self._codec, level=self._level)

    def produce_version(self, connection: Connection) -> int:
        """2 if the broker has it (0.10 to 3.9 do); v0 also fits 0 and 1."""
        least = _TIMESTAMPS_SINCE if self._magic else 0
        low, high = connection.served(ApiKey.PRODUCE) or (0, -1)
        oldest_fetch = (connection.served(ApiKey.FETCH) or (0, 0))[0]
        if low >= _BATCHES_SINCE or oldest_fetch > _LAST_OLD_FETCH:
            raise UnsupportedVersion(
                f"{connection.peer}: the broker does not accept message sets, like Kafka 4 and later; "
                f"message.format=v{self._magic} cannot be sent to it, v2 can"
            )
        version = min(high, _BATCHES_SINCE - 1)
        if version < max(low, least):
            raise UnsupportedVersion(
                f"{connection.peer}: the broker supports Produce {low} to {high}; "
                f"message.format=v{self._magic} needs {least} or later"
            )
        return version


def batch_version(connection: Connection, codec: Codec = Codec.NONE) -> int:
    """Produce version for a record batch. Raises `UnsupportedVersion` or `UnsupportedCompression`."""
    if (connection.served(ApiKey.PRODUCE) or (0, _BATCHES_SINCE))[1] < _BATCHES_SINCE:
        raise UnsupportedVersion(
            f"{connection.peer}: the broker is older than Kafka 0.11 and accepts no record batches; "
            "message.format=v1 is for 0.10, v0 for 0.8 and 0.9"
        )
    version = connection.version(ApiKey.PRODUCE)
    if codec is Codec.ZSTD and version < _ZSTD_SINCE:
        raise UnsupportedCompression(f"{connection.peer}: the broker is too old for compression.type=zstd")
    return version


def encoding_for(connection: Connection, codec: Codec) -> Encoding:
    _, high = connection.served(ApiKey.PRODUCE) or (0, _BATCHES_SINCE)
    if high >= _BATCHES_SINCE:
        return RecordBatches(codec, None)
    return MessageSets(1 if high >= _TIMESTAMPS_SINCE else 0, codec, None)


def encoding_of(config: ProducerConfig) -> Encoding:
    codec = Codec.named(config.compression_type)
    if config.sends_old_sets:
        return MessageSets(MAGICS[config.message_format], codec, config.compression_level)
    return RecordBatches(codec, config.compression_level, transactional=config.transactional_id is not None)
