"""Keys and values of ``__transaction_state``, in Kafka's layout. Pure.

Key: ``version:2 = 0 transactional_id:string``. Value version 0::

    version:2  producer_id:8  epoch:2  timeout_ms:4  state:1
    partitions: count:4, each topic:string, numbers: count:4, each partition:4   (null, -1, in Empty)
    changed_ms:8  started_ms:8

Version 1, written by brokers from 4.0 on, has compact lengths and tagged fields instead; we only read it. A
string is ``length:2`` and UTF-8 bytes; a null value deletes the key. Source: Kafka's ``TransactionLogKey``
and ``TransactionLogValue`` definitions.
"""

from __future__ import annotations

import struct
from itertools import groupby

from kafkalog_broker.logs.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.transactions.states import CoordinatorState, Transaction
from pyspark_kafkalog.errors import CorruptMessage, InvalidRequest
from pyspark_kafkalog.formats.base import read_uvarint
from pyspark_kafkalog.types import TopicPartition

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_FLEXIBLE = 1


def encode_key(transactional_id: str) -> bytes:
    """Raises `InvalidRequest`: the id is longer than 32767 bytes."""
    return _INT16.pack(0) + _string(transactional_id)


def encode_value(transaction: Transaction) -> bytes:
    out = bytearray(
        _HEAD.pack(0, transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state)
    )
    if transaction.state is CoordinatorState.EMPTY:
        out += _INT32.pack(-1)
    else:
        topics = {
            topic: [p.partition for p in group]
            for topic, group in groupby(sorted(transaction.partitions), key=lambda p: p.topic)
        }
        out += _INT32.pack(len(topics))
        for topic, numbers in topics.items():
            out += _string(topic) + _INT32.pack(len(numbers))
            out += b"".join(map(_INT32.pack, numbers))
    return bytes(out + _TIMES.pack(transaction.changed_ms, transaction.started_ms))


def decode_key(data: bytes) -> str | None:
    """None for a key of another kind. Raises `CorruptMessage`: the key is truncated."""
    try:
        (version,) = _INT16.unpack_from(data)
        if version != 0:
            return None
        (length,) = _INT16.unpack_from(data, 2)
        if length < 0 or 4 + length > len(data):
            raise CorruptMessage(f"{TRANSACTIONS_TOPIC}: an id of {length} bytes in a key of {len(data)}")
        return data[4 : 4 + length].decode("utf-8")
    except (struct.error, UnicodeDecodeError) as e:
        raise CorruptMessage(f"{TRANSACTIONS_TOPIC}: key of {len(data)} bytes cannot be read: {e}") from e


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    """Reads version 0 or 1. Raises `CorruptMessage`: truncated, or another version."""
    try:
        version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(data)
        if version not in (0, _FLEXIBLE):
            raise CorruptMessage(f"{TRANSACTIONS_TOPIC}: value of unknown version {version}")
        reader = _Reader(data, _HEAD.size, flexible=version == _FLEXIBLE)
        partitions = set()
        for _ in range(reader.count()):
            topic = reader.string()
            partitions |= {TopicPartition(topic, reader.number()) for _ in range(reader.count())}
            reader.skip_tags()
        changed_ms, started_ms = _TIMES.unpack_from(data, reader.position)
        return Transaction(
            transactional_id, producer_id, epoch, timeout_ms, CoordinatorState(state), changed_ms,
            frozenset(partitions), started_ms,
        )  # fmt: skip
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as e:
        raise CorruptMessage(f"{TRANSACTIONS_TOPIC}: value of {len(data)} bytes cannot be read: {e}") from e


class _Reader:
    """*Not thread-safe.* Reads lengths and strings of a value, in either version."""

    def __init__(self, data: bytes, position: int, *, flexible: bool) -> None:
        self._data = data
        self.position = position
        self._flexible = flexible

    def count(self) -> int:
        if self._flexible:
            count, self.position = read_uvarint(self._data, self.position)
            return max(0, count - 1)
        return max(0, self.number())

    def number(self) -> int:
        (number,) = _INT32.unpack_from(self._data, self.position)
        self.position += _INT32.size
        return int(number)

    def string(self) -> str:
        if self._flexible:
            length, self.position = read_uvarint(self._data, self.position)
            length -= 1
        else:
            (length,) = _INT16.unpack_from(self._data, self.position)
            self.position += _INT16.size
        start, self.position = self.position, self.position + length
        if length < 0 or self.position > len(self._data):
            raise CorruptMessage(f"{TRANSACTIONS_TOPIC}: a string of {length} bytes at byte {start}")
        return self._data[start : self.position].decode("utf-8")

    def skip_tags(self) -> None:
        if self._flexible:
            count, self.position = read_uvarint(self._data, self.position)
            for _ in range(count):
                _, self.position = read_uvarint(self._data, self.position)
                size, self.position = read_uvarint(self._data, self.position)
                self.position += size


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    if len(data) > 0x7FFF:
        raise InvalidRequest(f"{TRANSACTIONS_TOPIC}: a string of {len(data)} bytes; the limit is {0x7FFF}")
    return _INT16.pack(len(data)) + data
