"""A group as the coordinator stores it, and the topic that holds all groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import CONSUMER, JoinAnswer, Phase, SyncAnswer, Waiter
from kafkalog_broker.groups.consumer_group import ConsumerGroup
from kafkalog_broker.groups.group_records import changes, encode_group_key, records_of
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset, PendingOffsets
from kafkalog_broker.logs.state_topic import Shard, StateTopic, Stored
from kafkalog_broker.scheduler import Handle
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.types import NewRecord, TopicPartition

_LOG_CODES = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Log error codes as clients expect them from a coordinator; they retry after NOT_COORDINATOR."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

CLASSIC = "classic"
"""Kind of a group without members of the new protocol; the other kind is `CONSUMER`."""


class NoSuchGroup(KafkaError):
    """The group does not exist, or not as ``which`` says: its members use the other protocol."""

    code = ErrorCode.GROUP_ID_NOT_FOUND

    def __init__(self, group: str, which: str = "") -> None:
        super().__init__(f"there is no group {group!r}{which and ' '}{which}")


class Group:
    """*Not thread-safe: guarded by the lock of its shard.* A group's offsets and members. At most one of
    ``classic`` and ``consumer`` is set. ``wakes`` is the monotonic time at which the timer of ``classic``
    runs.
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
        return not self.offsets and self.consumer is None and (self.classic is None or self.classic.is_void)

    @property
    def state(self) -> str:
        if self.consumer is not None:
            return self.consumer.state
        return Phase.EMPTY.value if self.classic is None else self.classic.phase.value

    @property
    def protocol_type(self) -> str:
        if self.consumer is not None:
            return CONSUMER
        return "" if self.classic is None else self.classic.protocol_type or ""

    @property
    def kind(self) -> str:
        """`CLASSIC` or `CONSUMER`: the protocol of its members, or of its last ones."""
        return CLASSIC if self.consumer is None else CONSUMER

    @property
    def is_idle(self) -> bool:
        if self.consumer is not None:
            return not self.consumer.members
        return self.classic is None or self.classic.is_idle

    def tombstones(self, now_ms: int) -> list[NewRecord]:
        records = records_of(changes(self.consumer, None), now_ms)
        if self.classic is not None and self.classic.in_log:
            records.append(NewRecord(None, encode_group_key(self.name), now_ms))
        return records


@dataclass(slots=True)
class GroupShard:
    """*Not thread-safe: its shard's lock guards it.* The groups of one partition."""

    groups: dict[str, Group] = field(default_factory=dict)
    pending: PendingOffsets = field(default_factory=PendingOffsets)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))


@dataclass(eq=False)
class GroupTopic(StateTopic[GroupShard]):
    """*Thread-safe.* The offsets topic. The coordinator sets ``build``, which fills a shard when read."""

    name: str = OFFSETS_TOPIC
    new: Callable[[TopicPartition], GroupShard] = lambda _: GroupShard()
    build: Callable[[Shard[GroupShard], Stored], None] = field(init=False)

    def shard_for(self, name: str) -> Shard[GroupShard]:
        try:
            return self.shard_of(name)
        except KafkaError as e:
            raise as_coordinator(e) from e

    def known_shard(self, name: str) -> Shard[GroupShard]:
        """`shard_of`, but creates nothing. Raises `NoSuchGroup` if the topic does not exist."""
        self.check_found()
        if not self.shards:
            raise NoSuchGroup(name)
        return self.shard_of(name)

    def look_at(self, name: str, look: Callable[[Group], _T]) -> _T:
        """Calls ``look`` under the lock. Raises `NoSuchGroup`, and as `Shard.check_loaded`."""
        shard = self.known_shard(name)
        with shard.lock:
            return look(known_group(shard, name))


def known_group(shard: Shard[GroupShard], name: str) -> Group:
    shard.check_loaded()
    try:
        return shard.state.groups[name]
    except KeyError:
        raise NoSuchGroup(name) from None


def as_coordinator(error: KafkaError) -> ServerError:
    return ServerError(_LOG_CODES.get(error.code, error.code), str(error))


def give(answers: Iterable[tuple[Waiter, JoinAnswer | SyncAnswer]]) -> None:
    """Calls the waiters, without a lock; one that fails must not affect the others."""
    for waiter, answer in answers:
        try:
            waiter(answer)
        except Exception:
            _log.exception("an answer could not be given")
