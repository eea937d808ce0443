"""A group member: time and answers come in, requests go out. Pure. `EpochMember` (KIP-848): a heartbeat
brings what it may use; the next one reports what it owns after the program's changes.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from pyspark_kafkalog.client.discovery import TopicMetadata
from pyspark_kafkalog.client.groups import Committer
from pyspark_kafkalog.config.client_config import GroupConsumerConfig
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for, reason
from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from pyspark_kafkalog.types import TopicPartition, encode_id

NEVER = float("inf")

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Answers of a broker that does not coordinate the group; the coordinator must be looked up again."""


class PartitionChange(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"  # the member still owns them: it may commit, and must then give them up
    LOST = "lost"  # others may already own them. These are all of the member's partitions


class Rebalance(msgspec.Struct, frozen=True):
    """Partitions that the program gets or gives up. ``owned`` are all it has afterwards."""

    change: PartitionChange
    partitions: tuple[TopicPartition, ...]
    owned: frozenset[TopicPartition]


class Member(ABC):
    """*Not thread-safe: the caller holds a lock.* The program handles the first `Rebalance` in ``pending``;
    `done` then removes it. `_owned` lacks pending changes.
    """

    def __init__(self, config: GroupConsumerConfig) -> None:
        assert config.group_id is not None
        self.pending: deque[Rebalance] = deque()
        self.failure: KafkaError | None = None  # the error that stopped it; `resume` tries again
        self.wanted_topics: tuple[str, ...] = ()  # topics whose metadata it needs; passed to `learn`
        self._config, self._group, self._instance = config, config.group_id, config.group_instance_id
        self._topics: frozenset[str] = frozenset()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._backoff = Backoff(config)

    @property
    @abstractmethod
    def identity(self) -> Committer: ...

    @property
    @abstractmethod
    def joined(self) -> bool: ...

    @property
    @abstractmethod
    def watched_topics(self) -> frozenset[str]:
        """Topics whose new partitions must be passed to `learn`."""

    @abstractmethod
    def subscribe(self, topics: frozenset[str], now: float) -> None: ...

    @abstractmethod
    def request(self, now: float) -> Any | None:
        """The next request; call `answered` or `failed` before the next call. None: see `due`."""

    @abstractmethod
    def due(self) -> float:
        """When to call `request` again, if nothing happens before that."""

    @abstractmethod
    def answered(self, request: Any, answer: Any, now: float) -> None: ...

    @abstractmethod
    def failed(self, now: float) -> None:
        """It is unknown whether the request arrived."""

    @abstractmethod
    def learn(self, topics: Mapping[str, TopicMetadata], now: float) -> None: ...

    def done(self, rebalance: Rebalance, now: float) -> None:
        if not self.pending or self.pending[0] is not rebalance:
            return  # all partitions were lost meanwhile; that is pending
        self._owned = self.pending.popleft().owned
        if not self.pending:
            self._continue(rebalance, now)

    @abstractmethod
    def _continue(self, rebalance: Rebalance, now: float) -> None:
        """The program has handled all pending changes."""

    def resume(self, now: float) -> None:
        if self.failure is None or self.failure.code == ErrorCode.FENCED_INSTANCE_ID:
            return
        self.failure = None
        self._join_at(now + self._backoff.next(), now)

    @abstractmethod
    def _join_at(self, at: float, now: float) -> None: ...

    @abstractmethod
    def expire(self) -> Any | None:
        """The program stopped polling: leaves until it polls. Returns the request that says so, if any."""

    @abstractmethod
    def leave(self) -> Any | None: ...

    def _lose_all(self, *, expired: bool) -> None:
        is_news = bool(self._owned or self.pending) or expired
        self.pending.clear()
        if is_news:
            self.pending.append(Rebalance(PartitionChange.LOST, tuple(sorted(self._owned)), frozenset()))


class Backoff:
    """*Not thread-safe.* Wait between failed attempts: doubles up to a limit; success resets it."""

    def __init__(self, config: GroupConsumerConfig) -> None:
        self._first, self._most = config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        self._wait = self._first

    def next(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, max(self._most, self._first))
        return wait

    def reset(self) -> None:
        self._wait = self._first


def refused(group: str, code: ErrorCode, why: str | None = None) -> KafkaError:
    return error_for(
        code, f"group {group!r}: {reason(code, 'Read', group=group, said=why or _WHY.get(code))}"
    )


_WHY = {
    ErrorCode.FENCED_INSTANCE_ID: "another consumer with the same group.instance.id has joined; each static "
    "member needs a name of its own",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members have no partition.assignment.strategy in common with "
    "this one, or use the other group.protocol",
    ErrorCode.INVALID_SESSION_TIMEOUT: "session.timeout.ms is outside what the broker allows "
    "(group.min.session.timeout.ms, group.max.session.timeout.ms)",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as the broker allows (group.max.size)",
    ErrorCode.GROUP_ID_NOT_FOUND: "it has members of group.protocol=classic; stop them, or use that protocol",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another consumer with the same group.instance.id is still a member",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the broker does not have this group.remote.assignor",
}


logger = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2

_FENCED = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}
)
"""The broker does not know the member at this epoch: it has lost its partitions, and may rejoin."""

_LOOK_AGAIN_SECONDS = 1.0  # interval of look-ups for topics with unknown ids

Ids = frozenset[tuple[uuid.UUID, int]]  # partitions by topic id


class EpochMember(Member):
    def __init__(self, config: GroupConsumerConfig) -> None:
        super().__init__(config)
        self._member_id = encode_id(uuid.uuid4())
        self._epoch = JOIN_EPOCH
        self._active = self._expired = False
        self._target: Ids | None = None  # the last assignment; None once the program has all of it
        self._names: dict[uuid.UUID, str] = {}
        self._told_topics: frozenset[str] | None = None
        self._told_owned: frozenset[TopicPartition] | None = None
        """What the broker knows of both; None: it must be sent."""
        self._heartbeat_at = self._look_at = 0.0

    @property
    def identity(self) -> Committer:
        if self._epoch <= 0:
            return Committer(instance_id=None)
        return Committer(self._member_id, self._epoch, self._instance)

    @property
    def joined(self) -> bool:
        return self._active and not self._expired

    @property
    def watched_topics(self) -> frozenset[str]:
        return frozenset()  # the broker watches

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        if self._active and topics == self._topics:
            return
        self._topics = topics
        if not self._active:
            self._active, self.failure = True, None
        self._heartbeat_at = now

    def request(self, now: float) -> Any | None:
        self._reconcile(now)
        if not self.joined or now < self._heartbeat_at:
            return None
        if self._epoch == JOIN_EPOCH:
            # Lost partitions must be given up first: after the join another member may get them.
            return None if self.pending else self._full(())
        if self._told_topics is None or self._told_owned is None:
            return self._full(self._by_id(self._owned))
        topics, owned = self._topics, self._owned
        return ConsumerGroupHeartbeatRequest(
            self._group,
            self._member_id,
            self._epoch,
            instance_id=self._instance,
            subscribed_topic_names=tuple(sorted(topics)) if topics != self._told_topics else None,
            topic_partitions=self._by_id(owned) if owned != self._told_owned else None,
        )

    def due(self) -> float:
        if not self.joined or (self._epoch == JOIN_EPOCH and self.pending):
            return NEVER
        return min(self._heartbeat_at, self._look_at) if self._target is not None else self._heartbeat_at

    def answered(self, request: Any, answer: Any, now: float) -> None:
        if not self.joined:
            return
        if answer.error_code != ErrorCode.NONE:
            self._refused(answer, now)
            return
        self._backoff.reset()
        self._epoch = answer.member_epoch
        self._heartbeat_at = now + answer.heartbeat_interval_ms / 1000
        if request.subscribed_topic_names is not None:
            self._told_topics = frozenset(request.subscribed_topic_names)
        if request.topic_partitions is not None:
            self._told_owned = frozenset(self._named(_ids(request.topic_partitions)))
        if answer.assignment is not None:
            self._target = _ids(answer.assignment.topic_partitions)
        if self._topics != self._told_topics or self._owned != self._told_owned:
            self._heartbeat_at = now
        self._reconcile(now)

    def failed(self, now: float) -> None:
        # The broker may or may not have received the request.
        self._told_topics = self._told_owned = None
        self._heartbeat_at = now + self._backoff.next()

    def learn(self, topics: Mapping[str, TopicMetadata], now: float) -> None:
        self.wanted_topics = ()
        self._names.update({topic.topic_id: name for name, topic in topics.items() if topic.topic_id.int})
        self._look_at = now + _LOOK_AGAIN_SECONDS
        self._reconcile(now)

    def _continue(self, rebalance: Rebalance, now: float) -> None:
        if rebalance.change is PartitionChange.LOST:
            self._expired = False
        if self._epoch == JOIN_EPOCH or self._owned != self._told_owned:
            self._heartbeat_at = min(self._heartbeat_at, now)
        self._reconcile(now)

    def _join_at(self, at: float, now: float) -> None:  # noqa: ARG002
        self._active, self._heartbeat_at = True, at

    def expire(self) -> Any | None:
        goodbye = self.leave()
        self._expired = True
        self._lose()
        return goodbye

    def leave(self) -> Any | None:
        if not self.joined or self._epoch == JOIN_EPOCH:
            return None
        epoch = LEAVE_EPOCH if self._instance is None else STATIC_LEAVE_EPOCH
        return ConsumerGroupHeartbeatRequest(self._group, self._member_id, epoch, instance_id=self._instance)

    def _full(self, owned: tuple[TopicPartitions, ...]) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            self._group,
            self._member_id,
            self._epoch,
            instance_id=self._instance,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            subscribed_topic_names=tuple(sorted(self._topics)),
            server_assignor=self._config.group_remote_assignor,
            topic_partitions=owned,
        )

    def _reconcile(self, now: float) -> None:
        """Queues the next change for the program, unless one is pending; needs the topics' names."""
        if self._target is None or self.pending:
            return
        unknown = {topic_id for topic_id, _ in self._target} - self._names.keys()
        if unknown:
            # A deleted topic stays unknown until the next assignment.
            if now >= self._look_at:
                self.wanted_topics = tuple(sorted(self._topics))
                self._look_at = now + _LOOK_AGAIN_SECONDS
            target = self._named(self._target)
            if target == self._owned:
                return
        else:
            target, self._target = self._named(self._target), None
        revoked, added = tuple(sorted(self._owned - target)), tuple(sorted(target - self._owned))
        if revoked:
            self.pending.append(Rebalance(PartitionChange.REVOKED, revoked, self._owned & target))
        if added:
            self.pending.append(Rebalance(PartitionChange.ASSIGNED, added, target))

    def _named(self, ids: Ids) -> frozenset[TopicPartition]:
        names = self._names
        return frozenset(TopicPartition(names[topic], n) for topic, n in ids if topic in names)

    def _by_id(self, partitions: frozenset[TopicPartition]) -> tuple[TopicPartitions, ...]:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        topics: dict[uuid.UUID, list[int]] = {}
        for tp in sorted(partitions):
            topics.setdefault(ids[tp.topic], []).append(tp.partition)
        return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in topics.items())

    def _refused(self, answer: ConsumerGroupHeartbeatResponse, now: float) -> None:
        code = answer.error_code
        if code in COORDINATOR_MOVED or code.retriable:
            self._heartbeat_at = now + self._backoff.next()
        elif code in _FENCED and self._epoch != JOIN_EPOCH:
            logger.info("group %r: %s: joining again", self._group, code.name)
            self._lose()
            self._heartbeat_at = now
        else:
            self._lose()
            self._active = False
            self.failure = refused(self._group, code, None if code in _FENCED else answer.error_message)

    def _lose(self) -> None:
        self._epoch, self._target = JOIN_EPOCH, None
        self._told_topics = self._told_owned = None
        self._lose_all(expired=self._expired)


def _ids(topics: tuple[TopicPartitions, ...]) -> Ids:
    return frozenset((row.topic_id, number) for row in topics for number in row.partitions)
