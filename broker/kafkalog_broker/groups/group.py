"""A group as the coordinator keeps it: its offsets, and its members by the classic or the newer protocol; and
the topic in which all groups are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_records import encode_group_key
from kafkalog_broker.groups.classic_rules import CONSUMER, Phase
from kafkalog_broker.groups.consumer_group import ConsumerGroup
from kafkalog_broker.groups.consumer_group_records import changes, records_of
from kafkalog_broker.logs.state_topic import Shard, StateTopic
from kafkalog_broker.offsets.offset_records import CommittedOffset
from kafkalog_broker.offsets.pending_offsets import PendingOffsets
from kafkalog_broker.scheduler import Handle
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.types import NewRecord, TopicPartition

_LOG_CODES = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The log's codes as those that clients expect of a coordinator: the second makes them ask again."""

_T = TypeVar("_T")

CLASSIC = "classic"
"""The type of a group that no member of the newer protocol has joined. Theirs is `CONSUMER`."""


class NoSuchGroup(KafkaError):
    """The group is not known, or its members use the other protocol, which ``which`` says."""

    code = ErrorCode.GROUP_ID_NOT_FOUND

    def __init__(self, group: str, which: str = "") -> None:
        super().__init__(f"there is no group {group!r}{which and ' '}{which}")


class Group:
    """*Not thread-safe: guarded by the lock of its shard.* A group: its offsets, and its members.

    They have one protocol at a time: ``classic`` or ``consumer`` is None, and both are where there never were
    any. ``wakes`` is when the timer of ``classic`` runs, by the monotonic clock.
    """

    __slots__ = ("classic", "consumer", "name", "offsets", "timer", "wakes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None
        self.timer: Handle | None = None
        self.wakes = math.inf

    @property
    def is_void(self) -> bool:
        """Whether nothing would be lost without it."""
        return not self.offsets and self.consumer is None and (self.classic is None or self.classic.is_void)

    @property
    def state(self) -> str:
        """Its state, in Kafka's words."""
        if self.consumer is not None:
            return self.consumer.state
        return Phase.EMPTY.value if self.classic is None else self.classic.phase.value

    @property
    def protocol_type(self) -> str:
        """What its members speak of among themselves; "" if it never had any."""
        if self.consumer is not None:
            return CONSUMER
        return "" if self.classic is None else self.classic.protocol_type or ""

    @property
    def kind(self) -> str:
        """`CLASSIC` or `CONSUMER`: the protocol of its members; without any, of its last ones."""
        return CLASSIC if self.consumer is None else CONSUMER

    @property
    def is_idle(self) -> bool:
        """Whether it has no members, and nobody who was given an id is about to join."""
        if self.consumer is not None:
            return not self.consumer.members
        return self.classic is None or self.classic.is_idle

    def tombstones(self, now_ms: int) -> list[NewRecord]:
        """What deletes it, but for its offsets."""
        records = records_of(changes(self.consumer, None), now_ms)
        if self.classic is not None and self.classic.in_log:
            records.append(NewRecord(None, encode_group_key(self.name), now_ms))
        return records


@dataclass(slots=True)
class GroupShard:
    """*Not thread-safe: its shard's lock guards it.* What one partition keeps."""

    groups: dict[str, Group] = field(default_factory=dict)
    pending: PendingOffsets = field(default_factory=PendingOffsets)

    def group(self, name: str) -> Group:
        """The group of this name, made if need be."""
        return self.groups.setdefault(name, Group(name))


class GroupTopic(StateTopic[GroupShard]):
    """*Thread-safe.* The offsets topic, in which each partition keeps its groups."""

    def shard_for(self, name: str) -> Shard[GroupShard]:
        """`shard_of`, with the codes of a coordinator."""
        try:
            return self.shard_of(name)
        except KafkaError as e:
            raise as_coordinator(e) from e

    def known_shard(self, name: str) -> Shard[GroupShard]:
        """`shard_of`, but nothing is made. Raises `NoSuchGroup`: there is no topic, so no group."""
        self.check_found()
        if not self.shards:
            raise NoSuchGroup(name)
        return self.shard_of(name)

    def look_at(self, name: str, look: Callable[[Group], _T]) -> _T:
        """What ``look`` finds in the group. Raises `NoSuchGroup`, and as `Shard.check_loaded`."""
        shard = self.known_shard(name)
        with shard.lock:
            return look(known_group(shard, name))


def known_group(shard: Shard[GroupShard], name: str) -> Group:
    """The group of this name. Caller holds the lock. Raises as `GroupTopic.look_at`."""
    shard.check_loaded()
    try:
        return shard.state.groups[name]
    except KeyError:
        raise NoSuchGroup(name) from None


def as_coordinator(error: KafkaError) -> ServerError:
    """An error of the log with the code that clients expect of a coordinator."""
    return ServerError(_LOG_CODES.get(error.code, error.code), str(error))
