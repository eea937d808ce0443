"""Values that every layer uses, and how they are written. No I/O."""

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
"""Topics that brokers keep for themselves; brokers before 0.10 do not mark them as internal."""

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
"""Spark's placeholders in offset JSON: the end of a partition, and its beginning."""


class TimestampType(IntEnum):
    """Who set a record's timestamp. The numbers are those of Spark's ``timestampType`` column."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """Whether a fetch sees records of open and aborted transactions. The numbers are the protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


NO_BROKER = -1
"""The ``broker`` of a partition that does not belong to one broker: all partitions since 0.8."""


class TopicPartition(NamedTuple):
    """A partition of a topic; printed as ``topic-partition``, as in Kafka's own messages.

    In 0.7 each broker has its own partitions: ``broker`` is the one this belongs to, and it is printed as
    ``topic-broker-partition``. Since 0.8 ``broker`` is `NO_BROKER`.
    """

    topic: str
    partition: int
    broker: int = NO_BROKER

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def number(self) -> str:
        """The name within the topic, as in JSON and ZooKeeper: ``partition`` or ``broker-partition``."""
        return str(self.partition) if self.broker == NO_BROKER else f"{self.broker}-{self.partition}"


Header = tuple[str, "bytes | None"]
"""A record's header: name (may repeat) and value."""


@dataclass(frozen=True, slots=True)
class Record:
    """A message as read from a log of any generation.

    ``next_offset`` is where reading continues: ``offset + 1`` since 0.8, one frame further in 0.7.
    ``timestamp`` is in milliseconds since the epoch, `NO_TIMESTAMP` if the format has none.
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
    """A message to be written; ``timestamp`` is in milliseconds since the epoch, or `NO_TIMESTAMP`."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


def encode_id(value: uuid.UUID) -> str:
    """A UUID in 22 URL-safe characters, as Kafka writes cluster and topic ids."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_id(text: str) -> uuid.UUID:
    """The UUID that `encode_id` wrote. Raises `ValueError` if the text is not one."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
