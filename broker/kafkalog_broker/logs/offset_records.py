"""Keys and values of ``__consumer_offsets``, in Kafka's layout. Pure.

Key, versions 0 and 1: ``version:2 group:string topic:string partition:4``; later versions are for groups and
members. Value: ``version:2 offset:8``, then by version

* 0, 2: ``metadata:string commit_timestamp:8``
* 1: ``metadata:string commit_timestamp:8 expire_timestamp:8``
* 3: ``leader_epoch:4 metadata:string commit_timestamp:8``
* 4: the same with compact strings, and tagged fields

A string is ``length:2`` and UTF-8 bytes; a null value deletes the key. We write version 1 if the commit has
its own retention, else 3. Source: Kafka's ``OffsetCommitKey`` and ``OffsetCommitValue`` definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafkalog_broker.logs.state_records import decode_strings, encode_strings, version_of
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.protocol.primitives import read_length
from pyspark_kafkalog.types import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

NO_EXPIRY = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's next offset to read in a partition. Times are in ms; `NO_EXPIRY`: the broker's setting."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY

    def is_expired(self, now_ms: int, retention_ms: int, since_ms: int) -> bool:
        """Whether its own expiry, or ``retention_ms`` since the commit or later ``since_ms``, has passed."""
        if self.expire_timestamp_ms != NO_EXPIRY:
            return self.expire_timestamp_ms <= now_ms
        return max(self.commit_timestamp_ms, since_ms) + retention_ms <= now_ms


class OffsetKey(NamedTuple):
    """Group and partition of a stored offset."""

    group: str
    partition: TopicPartition


def encode_key(key: OffsetKey) -> bytes:
    """Encode key version 1. Raises `CorruptMessage`: group or topic above 32767 bytes."""
    return encode_strings(1, key.group, key.partition.topic) + _INT32.pack(key.partition.partition)


def encode_value(value: CommittedOffset) -> bytes:
    offset, committed = _INT64.pack(value.offset), _INT64.pack(value.commit_timestamp_ms)
    metadata = _string(value.metadata)
    if value.expire_timestamp_ms != NO_EXPIRY:
        return _INT16.pack(1) + offset + metadata + committed + _INT64.pack(value.expire_timestamp_ms)
    return _INT16.pack(3) + offset + _INT32.pack(value.leader_epoch) + metadata + committed


def decode_key(data: bytes) -> OffsetKey | None:
    """Decode a key; None if it is group metadata (version 2 and later). Raises `CorruptMessage`."""
    if version_of(data) not in (0, 1):
        return None
    (group, topic), pos = decode_strings(data, 2)
    if len(data) < pos + _INT32.size:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: key of {len(data)} bytes is cut")
    return OffsetKey(group, TopicPartition(topic, *_INT32.unpack_from(data, pos)))


def decode_value(data: bytes) -> CommittedOffset:
    """Decode a value of version 0 to 4. Raises `CorruptMessage`: truncated, or an unknown version."""
    try:
        (version,) = _INT16.unpack_from(data)
        if not 0 <= version <= 4:
            raise CorruptMessage(f"{OFFSETS_TOPIC}: value of unknown version {version}")
        (offset,) = _INT64.unpack_from(data, 2)
        pos, leader_epoch, expires = 10, -1, NO_EXPIRY
        if version >= 3:
            (leader_epoch,) = _INT32.unpack_from(data, pos)
            pos += 4
        metadata, pos = (_read_string if version < 4 else _read_compact_string)(data, pos)
        (committed,) = _INT64.unpack_from(data, pos)
        if version == 1:
            (expires,) = _INT64.unpack_from(data, pos + 8)
    except (struct.error, IndexError, UnicodeDecodeError) as e:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: value of {len(data)} bytes cannot be read: {e}") from e
    return CommittedOffset(offset, leader_epoch, metadata, committed, expires)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    if len(data) > 0x7FFF:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a string of {len(data)} bytes; the limit is {0x7FFF}")
    return _INT16.pack(len(data)) + data


def _read_string(data: bytes, pos: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, pos)
    pos += 2
    if length < 0 or pos + length > len(data):
        raise CorruptMessage(f"{OFFSETS_TOPIC}: string of {length} bytes at byte {pos} of {len(data)}")
    return bytes(data[pos : pos + length]).decode("utf-8"), pos + length


def _read_compact_string(data: bytes, pos: int) -> tuple[str, int]:
    length, pos = read_length(data, pos)
    end = pos + length - 1
    if length == 0 or end > len(data):
        raise CorruptMessage(f"{OFFSETS_TOPIC}: string of {length - 1} bytes at byte {pos} of {len(data)}")
    return data[pos:end].decode("utf-8"), end


class PendingOffsets:
    """*Not thread-safe: its shard's lock guards it.* Offsets by producer, until its transaction ends. The
    record latest in the log counts, whenever its transaction commits.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[OffsetKey, tuple[int, CommittedOffset] | None]] = {}
        """By producer id: the record's place in the log and its value; None once superseded."""

    def add(self, producer_id: int, place: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        """Add offsets stored by the producer's transaction; ``place`` rises with each call."""
        found = self._open.setdefault(producer_id, {})
        found.update({key: (place, value) for key, value in offsets.items()})

    def overtake(self, keys: Iterable[OffsetKey], place: int) -> None:
        """Mark pending records before ``place`` as superseded by committed records or deletions."""
        for found in self._open.values():
            for key in keys:
                pending = found.get(key)
                if pending is not None and pending[0] < place:
                    found[key] = None

    def end(self, producer_id: int, *, commit: bool) -> dict[OffsetKey, CommittedOffset]:
        found = self._open.pop(producer_id, {})
        if not commit:
            return {}
        valid = {key: pending for key, pending in found.items() if pending is not None}
        for key, (place, _) in valid.items():
            self.overtake((key,), place)
        return {key: value for key, (_, value) in valid.items()}

    def has(self, key: OffsetKey) -> bool:
        return any(key in found for found in self._open.values())
