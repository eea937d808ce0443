"""Keys and values of ``__consumer_offsets``, in Kafka's layout. Pure.

Key, versions 0 and 1: ``version:2 group:string topic:string partition:4``; later versions are for groups and
members. Value: ``version:2`` and `_StoredOffset`; version 4 is flexible. A null value deletes the key.

We write version 4, with the topic's id as Kafka does since 4.1, so that a topic made again does not get the
deleted one's offsets. A commit's own retention is in a tag of ours, as version 4 has no field for it. An
offset without a topic id is written in version 3, or 1 with its own retention. Source: Kafka's
``OffsetCommitKey`` and ``OffsetCommitValue`` definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from kafkalog_broker.logs import state_records
from pyspark_kafkalog.errors import CorruptMessage, InvalidRequest
from pyspark_kafkalog.protocol.codec import INT32, INT64, STRING, UUID_TYPE, WireStruct, wire
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.types import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

NO_EXPIRY = -1

_INT32 = struct.Struct(">i")
_NEWEST_VERSION = 4


class CommittedOffset(msgspec.Struct, frozen=True):
    """A group's next offset to read in a partition. Times are in ms; `NO_EXPIRY`: the broker's setting. The
    topic's id is `ZERO_UUID` if it is not known.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID

    def is_expired(self, now_ms: int, retention_ms: int, since_ms: int) -> bool:
        """Whether its own expiry, or ``retention_ms`` since the commit or later ``since_ms``, has passed."""
        if self.expire_timestamp_ms != NO_EXPIRY:
            return self.expire_timestamp_ms <= now_ms
        return max(self.commit_timestamp_ms, since_ms) + retention_ms <= now_ms


class _StoredOffset(WireStruct):
    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, 3, default=-1, ignorable=True)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, 1, 1, default=NO_EXPIRY)
    topic_id: UUID = wire(UUID_TYPE, 4, tag=0)
    own_expire_timestamp: int = wire(INT64, 4, tag=10_000, default=NO_EXPIRY)


class OffsetKey(NamedTuple):
    group: str
    partition: TopicPartition


def encode_key(key: OffsetKey) -> bytes:
    """Encode key version 1. Raises `CorruptMessage`: group or topic above 32767 bytes."""
    return state_records.encode_strings(1, key.group, key.partition.topic) + _INT32.pack(
        key.partition.partition
    )


def encode_value(value: CommittedOffset) -> bytes:
    """Raises `CorruptMessage`: the metadata has more than 32767 bytes."""
    stored = value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms
    expires = value.expire_timestamp_ms
    try:
        if value.topic_id != ZERO_UUID:
            of_topic = _StoredOffset(*stored, NO_EXPIRY, value.topic_id, expires)
            return state_records.encode_struct(of_topic, _NEWEST_VERSION, flexible=True)
        version = 3 if expires == NO_EXPIRY else 1
        return state_records.encode_struct(_StoredOffset(*stored, expires), version, flexible=False)
    except InvalidRequest as e:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: {e}") from e


def decode_key(data: bytes) -> OffsetKey | None:
    """Decode a key; None if it is group metadata (version 2 and later). Raises `CorruptMessage`."""
    if state_records.version_of(data) not in (0, 1):
        return None
    (group, topic), pos = state_records.decode_strings(data, 2)
    if len(data) < pos + _INT32.size:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: key of {len(data)} bytes is cut")
    return OffsetKey(group, TopicPartition(topic, *_INT32.unpack_from(data, pos)))


def decode_value(data: bytes) -> CommittedOffset:
    """Decode a value of version 0 to 4. Raises `CorruptMessage`: truncated, or an unknown version."""
    stored = state_records.decode_struct(_StoredOffset, data, _NEWEST_VERSION, flexible_since=_NEWEST_VERSION)
    expires = max(stored.expire_timestamp, stored.own_expire_timestamp)
    return CommittedOffset(
        stored.offset, stored.leader_epoch, stored.metadata, stored.commit_timestamp, expires, stored.topic_id
    )


class _Pending(NamedTuple):
    place: int
    value: CommittedOffset
    superseded: bool = False


class PendingOffsets:
    """*Guarded by its shard's lock.* Offsets by producer; the latest record counts, whenever it commits."""

    def __init__(self) -> None:
        self._open: dict[int, dict[OffsetKey, _Pending]] = {}
        """By producer id."""

    def add(self, producer_id: int, place: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        """Add offsets stored by the producer's transaction; ``place`` rises with each call."""
        found = self._open.setdefault(producer_id, {})
        found.update({key: _Pending(place, value) for key, value in offsets.items()})

    def overtake(self, keys: Iterable[OffsetKey], place: int) -> None:
        """Mark pending records before ``place`` as superseded by committed records or deletions."""
        for found in self._open.values():
            for key in keys:
                pending = found.get(key)
                if pending is not None and pending.place < place:
                    found[key] = pending._replace(superseded=True)

    def end(self, producer_id: int, *, commit: bool) -> dict[OffsetKey, CommittedOffset]:
        found = self._open.pop(producer_id, {})
        if not commit:
            return {}
        valid = {key: pending for key, pending in found.items() if not pending.superseded}
        for key, pending in valid.items():
            self.overtake((key,), pending.place)
        return {key: pending.value for key, pending in valid.items()}

    def of(self, key: OffsetKey) -> list[CommittedOffset]:
        """What open transactions have stored for the key, superseded ones included."""
        return [found[key].value for found in self._open.values() if key in found]
