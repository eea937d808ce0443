"""A group member, with a subclass per protocol: time and answers come in, requests go out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyspark_kafkalog.client.discovery import TopicMetadata
from pyspark_kafkalog.client.groups import Committer
from pyspark_kafkalog.config.client_config import GroupConsumerConfig
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for
from pyspark_kafkalog.types import TopicPartition

NEVER = float("inf")

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Answers of a broker that does not coordinate the group; the coordinator must be looked up again."""


class PartitionChange(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"  # the member still owns them: it may commit, and must then give them up
    LOST = "lost"  # others may already own them. These are all of the member's partitions


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions that the program gets or gives up. ``owned`` are all it has afterwards."""

    change: PartitionChange
    partitions: tuple[TopicPartition, ...]
    owned: frozenset[TopicPartition]


class Member(ABC):
    """*Not thread-safe: the caller holds a lock.* A member's side of a group protocol, without I/O.

    The program handles the first `Rebalance` in ``pending``; `done` then removes it. `_owned` are the
    partitions that the program knows of, without pending changes.
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
    def leave(self) -> Any | None:
        """For good."""

    def _lose_all(self, *, expired: bool) -> None:
        """Queues the loss of all partitions in place of pending changes."""
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
    return error_for(code, f"group {group!r}: {why or _WHY.get(code, code.name)}")


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
