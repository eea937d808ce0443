"""What a member of a group is, in either protocol: requests to send, answers, and what the program must do.

The two implementations (`classic_member`, `epoch_member`) do no I/O: time and answers come in, requests go
out. `group_thread` runs one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from pyspark_kafkalog.client.discovery import TopicMetadata
from pyspark_kafkalog.client.groups import Committer
from pyspark_kafkalog.config.group_consumer import GroupConsumerConfig
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for
from pyspark_kafkalog.types import TopicPartition

NEVER = float("inf")

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The answers of a broker that does not coordinate the group: it must be looked up again."""


class PartitionChange(Enum):
    """What happens to partitions of a member."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    """They are still the member's: it may commit, and must then let go."""
    LOST = "lost"
    """Others may have them already. It is all that the program has."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions that the program gets or gives up. ``owned`` is all that it has afterwards."""

    change: PartitionChange
    partitions: tuple[TopicPartition, ...]
    owned: frozenset[TopicPartition]


class Member(Protocol):
    """*Not thread-safe: the caller holds a lock.* A member's part of a group protocol.

    The first `Rebalance` in ``pending`` waits for the program; `done` takes it off.
    """

    pending: deque[Rebalance]
    failure: KafkaError | None
    """Why it stopped; `resume` makes another attempt."""
    wanted_topics: tuple[str, ...]
    """Topics whose metadata it waits for; `learn` has it."""

    @property
    def identity(self) -> Committer: ...

    @property
    def joined(self) -> bool:
        """Whether it is a member, or about to be."""
        ...

    @property
    def watched_topics(self) -> frozenset[str]:
        """Topics whose new partitions it must `learn` of."""
        ...

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Join, or from now on have these topics."""
        ...

    def request(self, now: float) -> Any | None:
        """The request to send now; after it `answered` or `failed` comes first. None: see `due`."""
        ...

    def due(self) -> float:
        """When to call `request` again, if nothing happens before."""
        ...

    def answered(self, request: Any, answer: Any, now: float) -> None: ...

    def failed(self, request: Any, now: float) -> None:
        """No answer came: it is unknown whether the request arrived."""
        ...

    def learn(self, topics: Mapping[str, TopicMetadata], now: float) -> None: ...

    def done(self, rebalance: Rebalance, now: float) -> None: ...

    def resume(self, now: float) -> None: ...

    def expire(self, now: float) -> Any | None:
        """The program does not poll: leave until it does. The request that says so, if one does."""
        ...

    def leave(self) -> Any | None:
        """The request to leave for good; None if the broker need not be told."""
        ...


class Backoff:
    """*Not thread-safe.* The wait between failed attempts: doubled up to a limit, begun again by success."""

    def __init__(self, config: GroupConsumerConfig) -> None:
        self._first, self._most = config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        self._wait = self._first

    def next(self) -> float:
        """Seconds until the next attempt."""
        wait, self._wait = self._wait, min(2 * self._wait, max(self._most, self._first))
        return wait

    def reset(self) -> None:
        self._wait = self._first


def refused(group: str, code: ErrorCode, why: str | None = None) -> KafkaError:
    """The error for an answer that ends the membership."""
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
