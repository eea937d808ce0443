"""Groups as records of ``__consumer_offsets``, in Kafka's layout. Pure.

Classic groups. Key: ``2:2 group:string``. Value: ``version:2`` and `StoredGroup`; version 4 is flexible. We
write version 3, as Kafka does, and read all. Source: Kafka's ``GroupMetadataKey`` and ``GroupMetadataValue``.

Groups of the new protocol. A key is ``version:2 group:string``, for some kinds followed by another string;
`RecordKind` lists the versions. A value is ``0:2`` and a flexible message. The last value of each key makes
up the state. Source: Kafka's ``ConsumerGroup*Key`` and ``*Value`` definitions.

A null value deletes its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import astuple, replace

from kafkalog_broker.groups.consumer_group import (
    ClassicMembership,
    ConsumerGroup,
    MatchedTopics,
    MemberProgress,
    MemberState,
    MemberSubscription,
    SubscribedTopic,
)
from kafkalog_broker.groups.server_assignors import TargetAssignment, by_topic
from kafkalog_broker.logs import state_records
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.protocol.codec import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID_TYPE,
    Array,
    WireStruct,
    wire,
)
from pyspark_kafkalog.types import NewRecord

# --- classic groups

GROUP_KEY_VERSION = 2
"""Version of the keys of classic groups."""

_WRITTEN_VERSION = 3
_NEWEST_VERSION = 4


class StoredMember(WireStruct):
    """``subscription`` is the metadata for the group's protocol. Times are in milliseconds."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, 1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: bytes = wire(BYTES)
    assignment: bytes = wire(BYTES)


class StoredGroup(WireStruct):
    """``protocol`` and ``leader`` are None without members; the timestamp is in ms since the epoch, or -1."""

    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(STRING, null_since=0)
    leader: str | None = wire(STRING, null_since=0)
    current_state_timestamp: int = wire(INT64, 2, default=-1)
    members: tuple[StoredMember, ...] = wire(Array(StoredMember))


def encode_group_key(group: str) -> bytes:
    return state_records.encode_strings(GROUP_KEY_VERSION, group)


def decode_group_key(data: bytes) -> str | None:
    """The group name; None for a key of another kind. Raises `CorruptMessage` for a truncated key."""
    if state_records.version_of(data) != GROUP_KEY_VERSION:
        return None
    (group,), _ = state_records.decode_strings(data, 1)
    return group


def encode_group(group: StoredGroup) -> bytes:
    return state_records.encode_struct(group, _WRITTEN_VERSION, flexible=False)


def decode_group(data: bytes) -> StoredGroup:
    return state_records.decode_struct(StoredGroup, data, _NEWEST_VERSION, flexible_since=_NEWEST_VERSION)


# --- groups of the new protocol

_VALUE_VERSION = 0


class RecordKind(IntEnum):
    """The version of a record's key, which says what the record stores."""

    EPOCH = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    PROGRESS = 8
    PATTERN = 16


_WITH_ITEM = {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.PROGRESS, RecordKind.PATTERN}


class RecordKey(NamedTuple):
    """``item`` is a member id or a pattern; "" for kinds with one record per group."""

    kind: RecordKind
    group: str
    item: str = ""


StateRecord = tuple[RecordKey, bytes | None]
"""A None value deletes the key."""


class _Epoch(WireStruct):
    epoch: int = wire(INT32)


class _Racks(WireStruct):
    partition: int = wire(INT32)
    racks: tuple[str, ...] = wire(Array(STRING))


class _Topic(WireStruct):
    topic_id: UUID = wire(UUID_TYPE)
    name: str = wire(STRING)
    partition_count: int = wire(INT32)
    racks: tuple[_Racks, ...] = wire(Array(_Racks))


class _TopicsValue(WireStruct):
    topics: tuple[_Topic, ...] = wire(Array(_Topic))


class _Protocol(WireStruct):
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


_NOT_CLASSIC = b"\1\0\1\0"
"""How Kafka ends the value of a member that is not classic: tagged field 0, of one byte, which is null."""


class _Classic(WireStruct):
    """A structure that may be null: ``present`` is 1, or we do not write it."""

    present: int = wire(INT8, default=-1)
    session_timeout_ms: int = wire(INT32)
    protocols: tuple[_Protocol, ...] = wire(Array(_Protocol))


class _MemberValue(WireStruct):
    instance_id: str | None = wire(STRING, null_since=0)
    rack_id: str | None = wire(STRING, null_since=0)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    names: tuple[str, ...] = wire(Array(STRING))
    pattern: str | None = wire(STRING, null_since=0)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    assignor: str | None = wire(STRING, null_since=0)
    classic: _Classic = wire(_Classic, tag=0)


class _Partitions(WireStruct):
    topic_id: UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(Array(INT32))


class _Target(WireStruct):
    partitions: tuple[_Partitions, ...] = wire(Array(_Partitions))


class _Progress(WireStruct):
    epoch: int = wire(INT32)
    previous_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned: tuple[_Partitions, ...] = wire(Array(_Partitions))
    revoking: tuple[_Partitions, ...] = wire(Array(_Partitions))


class _Pattern(WireStruct):
    names: tuple[str, ...] = wire(Array(STRING))
    version: int = wire(INT64)
    time_ms: int = wire(INT64)


_VALUES: dict[RecordKind, Any] = {
    RecordKind.EPOCH: _Epoch,
    RecordKind.TOPICS: _TopicsValue,
    RecordKind.MEMBER: _MemberValue,
    RecordKind.TARGET_EPOCH: _Epoch,
    RecordKind.TARGET: _Target,
    RecordKind.PROGRESS: _Progress,
    RecordKind.PATTERN: _Pattern,
}


def encode_key(key: RecordKey) -> bytes:
    return state_records.encode_strings(key.kind, key.group, *([key.item] if key.kind in _WITH_ITEM else []))


def decode_key(data: bytes) -> RecordKey | None:
    """None for a key of another kind. Raises `CorruptMessage`: the key is truncated."""
    version = state_records.version_of(data)
    if version not in _VALUES:
        return None
    kind = RecordKind(version)
    strings, _ = state_records.decode_strings(data, 2 if kind in _WITH_ITEM else 1)
    return RecordKey(kind, *strings)


def changes(before: ConsumerGroup | None, after: ConsumerGroup | None) -> list[StateRecord]:
    """The records that turn ``before`` into ``after``, None for no group, in Kafka's order."""
    present = after if after is not None else before
    if present is None or before is after:
        return []
    group = present.group_id
    old = before if before is not None else ConsumerGroup(group)
    new = after if after is not None else ConsumerGroup(group)
    entries: list[StateRecord] = []

    def gone(kind: RecordKind, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if was is not now:
            entries.extend((RecordKey(kind, group, item), None) for item in was if item not in now)

    def changed(
        kind: RecordKind, was: Mapping[str, Any], now: Mapping[str, Any], value: Callable[[Any], Any]
    ) -> None:
        if was is not now:
            for item, present in now.items():
                if item not in was or was[item] != present:
                    entries.append((RecordKey(kind, group, item), _encode(value(present))))

    gone(RecordKind.PROGRESS, old.progress, new.progress)
    gone(RecordKind.TARGET, old.target, new.target)
    gone(RecordKind.MEMBER, old.members, new.members)
    gone(RecordKind.PATTERN, old.patterns, new.patterns)
    if after is None:
        kinds = RecordKind.TARGET_EPOCH, RecordKind.TOPICS, RecordKind.EPOCH
        return [*entries, *((RecordKey(kind, group), None) for kind in kinds)]
    changed(RecordKind.MEMBER, old.members, new.members, _member)
    changed(RecordKind.PATTERN, old.patterns, new.patterns, lambda m: _Pattern(m.names, 0, m.time_ms))
    if old.topics != new.topics:
        topics = tuple(_Topic(t.topic_id, name, t.partition_count, ()) for name, t in new.topics.items())
        entries.append((RecordKey(RecordKind.TOPICS, group), _encode(_TopicsValue(topics))))
    if before is None or old.epoch != new.epoch:
        entries.append((RecordKey(RecordKind.EPOCH, group), _encode(_Epoch(new.epoch))))
    changed(RecordKind.TARGET, old.target, new.target, lambda target: _Target(_by_topic(target)))
    if old.target_epoch != new.target_epoch:
        entries.append((RecordKey(RecordKind.TARGET_EPOCH, group), _encode(_Epoch(new.target_epoch))))
    changed(RecordKind.PROGRESS, old.progress, new.progress, _progress)
    return entries


def records_of(entries: Iterable[StateRecord], now_ms: int) -> list[NewRecord]:
    return [NewRecord(value, encode_key(key), now_ms) for key, value in entries]


def build(group: str, values: Mapping[RecordKey, bytes]) -> ConsumerGroup | None:
    """The state in the last values; None if it was deleted. Then call `resumed`. Raises `CorruptMessage`."""
    found: dict[RecordKind, dict[str, Any]] = {kind: {} for kind in RecordKind}
    for key, data in values.items():
        found[key.kind][key.item] = _decode(key, data)
    if not found[RecordKind.EPOCH]:
        return None
    members = {m: _member_of(v) for m, v in found[RecordKind.MEMBER].items()}
    target_epoch = found[RecordKind.TARGET_EPOCH].get("")
    topics = value.topics if (value := found[RecordKind.TOPICS].get("")) else ()
    return ConsumerGroup(
        group,
        epoch=found[RecordKind.EPOCH][""].epoch,
        topics={t.name: SubscribedTopic(t.topic_id, t.partition_count) for t in topics},
        members=members,
        target_epoch=target_epoch.epoch if target_epoch else 0,
        target={m: _flat(v.partitions) for m, v in found[RecordKind.TARGET].items() if m in members},
        progress={
            m: _progress_of(found[RecordKind.PROGRESS].get(m, _Progress(0, 0, 0, (), ()))) for m in members
        },
        patterns={p: MatchedTopics(v.names, v.time_ms) for p, v in found[RecordKind.PATTERN].items()},
    )


def _encode(value: WireStruct) -> bytes:
    return state_records.encode_struct(value, _VALUE_VERSION, flexible=True)


def _decode(key: RecordKey, data: bytes) -> Any:
    if key.kind is RecordKind.MEMBER and data.endswith(_NOT_CLASSIC):
        data = data[: -len(_NOT_CLASSIC)] + b"\0"
    try:
        return state_records.decode_struct(
            _VALUES[key.kind], data, _VALUE_VERSION, flexible_since=_VALUE_VERSION
        )
    except CorruptMessage as e:
        raise CorruptMessage(f"{key.kind.name} of group {key.group!r}: {e}") from e


def _member(member: MemberSubscription) -> _MemberValue:
    *fields, _ = astuple(member)
    classic = _Classic()
    if member.classic is not None:
        protocols = tuple(_Protocol(*each) for each in member.classic.protocols)
        classic = _Classic(1, member.classic.session_timeout_ms, protocols)
    return replace(_MemberValue(*fields), pattern=member.pattern or None, classic=classic)


def _member_of(value: _MemberValue) -> MemberSubscription:
    *fields, _ = astuple(replace(value, pattern=value.pattern or ""))
    classic = None
    if value.classic.present == 1:
        protocols = tuple((each.name, each.metadata) for each in value.classic.protocols)
        classic = ClassicMembership(value.classic.session_timeout_ms, protocols)
    return replace(MemberSubscription(*fields), classic=classic)


def _progress(progress: MemberProgress) -> _Progress:
    assigned, revoking = _by_topic(progress.assigned), _by_topic(progress.revoking)
    return _Progress(progress.epoch, progress.previous_epoch, progress.state, assigned, revoking)


def _progress_of(value: _Progress) -> MemberProgress:
    try:
        state = MemberState(value.state)
    except ValueError:
        raise CorruptMessage(f"a member's state is {value.state}; known are 0 to 2") from None
    return MemberProgress(
        value.epoch, value.previous_epoch, state, _flat(value.assigned), _flat(value.revoking)
    )


def _by_topic(assignment: TargetAssignment) -> tuple[_Partitions, ...]:
    return tuple(_Partitions(topic, partitions) for topic, partitions in by_topic(assignment))


def _flat(topics: Iterable[_Partitions]) -> TargetAssignment:
    return frozenset((t.topic_id, p) for t in topics for p in t.partitions)
