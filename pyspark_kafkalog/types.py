"""The few values that every layer speaks of, and how they are written. No I/O."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""Values of ListOffsets' ``timestamp`` that are not times (`MAX_TIMESTAMP` from version 7)."""

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
"""Topics that brokers keep for themselves; those before 0.10 do not say so of them."""

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
"""Spark's placeholders in offset JSON: where the partition ends, where it begins."""


class TimestampType(IntEnum):
    """Who set a record's timestamp. The numbers are Spark's ``timestampType`` column."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """What a fetch may see of transactions; the wire's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


NO_BROKER = -1
"""The broker of a partition that is the cluster's."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as ``topic-partition``, as Kafka's own messages do.

    ``broker`` is the one it belongs to in 0.7, where each broker has partitions of its own and
    ``topic-broker-partition`` is what prints. Since then partitions are the cluster's: `NO_BROKER`.
    """

    topic: str
    partition: int
    broker: int = NO_BROKER

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def number(self) -> str:
        """The name within the topic, as JSON and ZooKeeper have it: ``partition`` or ``broker-partition``."""
        return str(self.partition) if self.broker == NO_BROKER else f"{self.broker}-{self.partition}"


Header = tuple[str, "bytes | None"]
"""A record's header: name (may repeat) and value."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message as read from a log of any generation.

    ``next_offset`` is where reading goes on after this record: its codec knows whether that is
    one further (0.8 onwards) or one frame further (0.7). ``timestamp`` is in milliseconds since the
    epoch, `NO_TIMESTAMP` where the format has none.
    """

    offset: int
    next_offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One message still to be written: nothing has given it an offset yet.

    ``timestamp`` in milliseconds since the epoch; `NO_TIMESTAMP` is allowed.
    """

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


def encode_id(value: uuid.UUID) -> str:
    """A UUID in 22 URL-safe characters, as Kafka writes cluster and topic ids."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_id(text: str) -> uuid.UUID:
    """The UUID that `encode_id` wrote. Raises `ValueError` when it is none."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
