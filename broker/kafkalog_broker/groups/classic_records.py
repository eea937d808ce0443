"""Classic groups as records of ``__consumer_offsets``, in Kafka's layout. Pure.

Key: ``2:2 group:string``. Value: ``version:2`` and the fields below; version 4 is flexible. We write
version 3, as Kafka does, and read all. A null value deletes the group.
Source: Kafka's ``GroupMetadataKey`` and ``GroupMetadataValue`` definitions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.protocol.codec import BYTES, INT32, INT64, STRING, Array, codec, wire
from pyspark_kafkalog.protocol.primitives import Output

GROUP_KEY_VERSION = 2
"""Version of the keys of classic groups."""

_WRITTEN_VERSION = 3
_NEWEST_VERSION = 4
_FLEXIBLE_SINCE = 4

_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class StoredMember:
    """``subscription`` is the metadata for the group's protocol. Times are in milliseconds."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, 1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: bytes = wire(BYTES)
    assignment: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One generation of a group; ``protocol`` and ``leader`` are None if it has no members.

    ``current_state_timestamp`` is in milliseconds since the epoch; -1 in versions without it.
    """

    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(STRING, null_since=0)
    leader: str | None = wire(STRING, null_since=0)
    current_state_timestamp: int = wire(INT64, 2, default=-1)
    members: tuple[StoredMember, ...] = wire(Array(StoredMember))


def encode_group_key(group: str) -> bytes:
    """Raises `CorruptMessage`: the name is longer than 32767 bytes."""
    data = group.encode()
    if len(data) > 0x7FFF:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a group's name of {len(data)} bytes; the limit is {0x7FFF}")
    return _INT16.pack(GROUP_KEY_VERSION) + _INT16.pack(len(data)) + data


def decode_group_key(data: bytes) -> str | None:
    """The group name; None for a key of another kind. Raises `CorruptMessage` for a truncated key."""
    if len(data) < _INT16.size or _INT16.unpack_from(data) != (GROUP_KEY_VERSION,):
        return None
    name = data[2 * _INT16.size :]
    if len(data) < 2 * _INT16.size or _INT16.unpack_from(data, _INT16.size) != (len(name),):
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a group's key of {len(data)} bytes is cut")
    try:
        return name.decode()
    except UnicodeDecodeError as e:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: the name of a group cannot be read: {e}") from e


def encode_group(group: StoredGroup) -> bytes:
    """Value version 3. Raises `InvalidRequest`: a string is too long for its field."""
    out = Output()
    codec(StoredGroup, _WRITTEN_VERSION, False).write(out, group)
    return _INT16.pack(_WRITTEN_VERSION) + bytes(out)


def decode_group(data: bytes) -> StoredGroup:
    """Reads any version up to 4. Raises `CorruptMessage`: truncated, or an unknown version."""
    if len(data) < _INT16.size:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a group's value of {len(data)} bytes is cut")
    (version,) = _INT16.unpack_from(data)
    if not 0 <= version <= _NEWEST_VERSION:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a group's value has the unknown version {version}")
    table = codec(StoredGroup, version, version >= _FLEXIBLE_SINCE)
    try:
        found: StoredGroup = table.read(memoryview(data), _INT16.size)
    except KafkaError as e:
        raise CorruptMessage(f"{OFFSETS_TOPIC}: a group's value of {len(data)} bytes: {e}") from e
    return found
