"""Values used by every layer, and their text forms. No I/O."""

from __future__ import annotations

import base64
import re
import uuid
from enum import IntEnum
from typing import NamedTuple

import msgspec

NO_TIMESTAMP = -1
"""Timestamp of a record without one."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""Special values of ListOffsets' ``timestamp`` (`MAX_TIMESTAMP` from version 7)."""

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
"""Topics that brokers keep for themselves; brokers before 0.10 do not mark them as internal."""

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
"""Spark's placeholders in offset JSON for the end and the beginning of a partition."""


PROTOCOL_07, PROTOCOL_08 = "0.7", "0.8"  # Kafka 0.7's protocol, and today's, used since 0.8

_PORT = re.compile(r"[0-9]{1,5}")


class TimestampType(IntEnum):
    """Who set a record's timestamp; numbered as in Spark's ``timestampType`` column."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """Whether a fetch sees records of open and aborted transactions; numbered as in the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


NO_BROKER = -1
"""``broker`` of a partition that no single broker owns: all partitions since 0.8."""


class TopicPartition(NamedTuple):
    """A partition of a topic; printed as ``topic-partition``, in 0.7 as ``topic-broker-partition``."""

    topic: str
    partition: int
    broker: int = NO_BROKER

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def number(self) -> str:
        """Name within the topic, as in JSON and ZooKeeper: ``partition`` or ``broker-partition``."""
        return str(self.partition) if self.broker == NO_BROKER else f"{self.broker}-{self.partition}"


Header = tuple[str, "bytes | None"]
"""Name (may repeat) and value of a record's header."""


class Record(msgspec.Struct, frozen=True):
    """A message read from a log of any generation. ``next_offset`` is where reading continues: ``offset + 1``
    since 0.8, the next frame in 0.7. ``timestamp`` is in milliseconds since the epoch, or `NO_TIMESTAMP`.
    """

    offset: int
    next_offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(msgspec.Struct, frozen=True):
    """A message to write; ``timestamp`` is in milliseconds since the epoch, or `NO_TIMESTAMP`."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``. Raises `ValueError`."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address is written [address]:port")
    if not (colon and host and _PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(parse_address(part) for part in text.split(",") if part.strip())


def encode_id(value: uuid.UUID) -> str:
    """A UUID in 22 URL-safe characters, as Kafka writes cluster and topic ids."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_id(text: str) -> uuid.UUID:
    """The UUID that `encode_id` wrote. Raises `ValueError` if the text is not one."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
