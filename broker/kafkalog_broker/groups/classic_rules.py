"""What a classic group is asked, what it answers in which phase, and how members join again: as tables. Pure.

Source: Kafka's ``GroupCoordinator`` and ``GroupMetadata``; KIP-62, 345, 394, 559, 814.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from kafkalog_broker.groups.classic_records import StoredGroup
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import STRING, Array, codec, wire

CONSUMER = "consumer"
"""The protocol type whose metadata are subscriptions to topics."""


class Moment(NamedTuple):
    """A time by both clocks: seconds that never run backwards, and milliseconds since the epoch."""

    monotonic: float
    time_ms: int

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        """The present one."""
        return cls(clock.monotonic(), clock.time_ms())


class Phase(str, Enum):
    """What a group is doing, in Kafka's words."""

    EMPTY = "Empty"
    """It has no members, but may have offsets, and clients that were given an id and have not joined yet."""

    PREPARING = "PreparingRebalance"
    """Its members are to join again: their joins wait until all have, or for the longest of their times."""

    COMPLETING = "CompletingRebalance"
    """All have joined; the leader is to say who gets what. The others' syncs wait for that."""

    STABLE = "Stable"
    """Everybody can have an assignment."""


class Asked(Enum):
    """What is answered at once, by the group's phase alone once the member is known to belong."""

    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit of a member"
    COMMIT_FROM_OUTSIDE = "OffsetCommit without member and generation"
    COMMIT_IN_TRANSACTION = "TxnOffsetCommit of a member"
    DELETION = "DeleteGroups"


_OK, _AGAIN, _UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID
_IN_USE = ErrorCode.NON_EMPTY_GROUP

_PHASES = (Phase.EMPTY, Phase.PREPARING, Phase.COMPLETING, Phase.STABLE)

ANSWERS: Mapping[Asked, Mapping[Phase, ErrorCode]] = {
    asked: dict(zip(_PHASES, codes, strict=True))
    for asked, codes in {
        #                             Empty     Preparing Completing Stable
        Asked.SYNC:                  (_UNKNOWN, _AGAIN,   _OK,       _OK),
        Asked.HEARTBEAT:             (_UNKNOWN, _AGAIN,   _OK,       _OK),
        Asked.COMMIT:                (_UNKNOWN, _OK,      _AGAIN,    _OK),
        Asked.COMMIT_FROM_OUTSIDE:   (_OK,      _UNKNOWN, _UNKNOWN,  _UNKNOWN),
        Asked.COMMIT_IN_TRANSACTION: (_UNKNOWN, _OK,      _OK,       _OK),
        Asked.DELETION:              (_OK,      _IN_USE,  _IN_USE,   _IN_USE),
    }.items()
}  # fmt: skip


class Move(Enum):
    """What a member's join brings about."""

    WAIT = "it waits with the others"
    TELL = "it is told the present generation"
    REBALANCE = "all must join again; it has"


class Rejoin(IntEnum):
    """Who joins again, and whether with the metadata that the group knows."""

    FOLLOWER = 0
    LEADER = 1
    CHANGED = 2


REJOINS: Mapping[Phase, tuple[Move, Move, Move]] = {
    #                  FOLLOWER   LEADER          CHANGED
    Phase.PREPARING:  (Move.WAIT, Move.WAIT,      Move.WAIT),
    Phase.COMPLETING: (Move.TELL, Move.TELL,      Move.REBALANCE),
    Phase.STABLE:     (Move.TELL, Move.REBALANCE, Move.REBALANCE),
}  # fmt: skip

Protocols = tuple[tuple[str, bytes], ...]
"""The assignment strategies that a member has, the preferred one first, each with the member's metadata."""


class JoinRequest(NamedTuple):
    """A member joins. ``new_id`` is for a member without one, which is told it first if ``names_first``.

    Times are in milliseconds. ``can_skip``: a leader understands that it is not to assign.
    """

    member_id: str
    new_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    names_first: bool
    can_skip: bool


class SyncRequest(NamedTuple):
    """A member asks for its assignment; the leader brings everybody's. None: it does not say."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class JoinedMember(NamedTuple):
    """A member as the leader is told of it: its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """What a join comes to. ``members`` is for the leader, which assigns unless ``skip_assignment``."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncAnswer(NamedTuple):
    """What a sync comes to."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Waiter = Callable[[Any], object]
"""Takes the `JoinAnswer` or `SyncAnswer` of one request; it is only handed back, never called here."""


@dataclass(slots=True)
class GroupOutcome:
    """What an event comes to: ``stored`` goes into the log, then ``answers`` to those who wait.

    ``sooner``: `ClassicGroup.deadline` may be sooner than it was.
    """

    answers: list[tuple[Waiter, Any]] = field(default_factory=list)
    stored: StoredGroup | None = None
    sooner: bool = False


@dataclass(frozen=True, slots=True)
class _SubscribedTopics:
    """The beginning of a consumer's metadata, after its version, in all versions."""

    topics: tuple[str, ...] = wire(Array(STRING))


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The topics that a consumer's metadata name: ``version:2 topics:[string]`` and more, of any version.

    None is any: metadata that cannot be read may mean each topic, and no offsets must be lost, as in Kafka.
    """
    try:
        found: _SubscribedTopics = codec(_SubscribedTopics, 0, False).read(
            memoryview(metadata), struct.calcsize(">h"), exact=False
        )
    except Exception:
        return None
    return found.topics
