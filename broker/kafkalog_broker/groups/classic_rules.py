"""Requests, answers and members of classic groups, and the rules for them as tables. Pure.

Source: Kafka's ``GroupCoordinator`` and ``GroupMetadata``; KIP-62, 345, 394, 559, 814.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from kafkalog_broker.groups.group_records import StoredGroup, StoredMember
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import STRING, Array, WireStruct, codec, wire

CONSUMER = "consumer"
"""Protocol type of consumers; its metadata is a topic subscription."""


class Moment(NamedTuple):
    """A time by both clocks: monotonic seconds, and milliseconds since the epoch."""

    monotonic: float
    time_ms: int

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        return cls(clock.monotonic(), clock.time_ms())


class Phase(str, Enum):
    EMPTY = "Empty"
    """No members; may have offsets, and clients that were handed an id but have not joined."""

    PREPARING = "PreparingRebalance"
    """Joins wait until all members have joined, at most for the longest rebalance timeout."""

    COMPLETING = "CompletingRebalance"
    """All have joined; syncs wait until the leader sends the assignments."""

    STABLE = "Stable"
    """The assignments are known."""


class Asked(Enum):
    """Requests whose answer depends only on the phase, once the member is known."""

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
    WAIT = "it waits with the others"
    TELL = "it is told the present generation"
    REBALANCE = "all must join again; it has"


class Rejoin(IntEnum):
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
"""Supported assignment strategies, preferred first, each with the member's metadata."""


class JoinRequest(NamedTuple):
    """``new_id`` is for a member without an id; with ``names_first`` it must rejoin with that id (KIP-394).
    ``can_skip``: a leader understands ``skip_assignment`` (KIP-814).
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
    """Only the leader sends ``assignments``; None for the protocol fields means not given."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """``members`` is for the leader, which assigns unless ``skip_assignment``."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncAnswer(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Waiter = Callable[[Any], object]
"""Receives the `JoinAnswer` or `SyncAnswer` of a request. Only returned in outcomes, never called here."""


@dataclass(slots=True)
class GroupOutcome:
    """``stored`` goes to the log before ``answers`` are sent. ``sooner``: the deadline may be earlier."""

    answers: list[tuple[Waiter, Any]] = field(default_factory=list)
    stored: StoredGroup | None = None
    sooner: bool = False


_NEW_MEMBER_SECONDS = 300.0
"""Limit for a new member's first join; such a member may not know its id. Kafka's value."""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """*Not thread-safe: its group's.* Times are in seconds; ``expires`` is by the monotonic clock."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Protocols
    knows_its_id: bool
    is_new: bool = True
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None
    expires: float = math.inf

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> ClassicMember:
        made = cls(member_id, request.instance_id, "", "", 0.0, 0.0, (), knows_its_id=bool(request.member_id))
        made.take(request)
        return made

    @classmethod
    def restored(cls, stored: StoredMember, protocol: str | None) -> ClassicMember:
        rebalance_ms = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
        return cls(
            stored.member_id, stored.group_instance_id, stored.client_id, stored.client_host,
            stored.session_timeout / 1000, rebalance_ms / 1000, ((protocol or "", stored.subscription),),
            knows_its_id=True, is_new=False, assignment=stored.assignment,
        )  # fmt: skip

    def stored(self, protocol: str | None) -> StoredMember:
        return StoredMember(
            member_id=self.member_id, group_instance_id=self.instance_id, client_id=self.client_id,
            client_host=self.client_host, rebalance_timeout=int(self.rebalance_seconds * 1000),
            session_timeout=int(self.session_seconds * 1000), subscription=self.metadata(protocol),
            assignment=self.assignment,
        )  # fmt: skip

    def take(self, request: JoinRequest) -> None:
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_seconds = request.session_timeout_ms / 1000
        self.rebalance_seconds = request.rebalance_timeout_ms / 1000
        self.protocols = request.protocols

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def wait_on(self, now: float) -> None:
        """Suspends the session while the member waits for an answer; a new member gets a limit."""
        self.expires = now + _NEW_MEMBER_SECONDS if self.is_new else math.inf

    def renew(self, now: float) -> None:
        self.expires = now + self.session_seconds

    def heard_of(self, now: float) -> None:
        if self.joining is None and self.syncing is None:
            self.renew(now)


class _SubscribedTopics(WireStruct):
    """The fields common to all versions, without the version."""

    topics: tuple[str, ...] = wire(Array(STRING))


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Topics in a consumer's metadata of any version: ``version:2 topics:[string]`` and more. None if it
    cannot be read: any topic, as Kafka assumes, so that no offsets are lost.
    """
    try:
        found: _SubscribedTopics = codec(_SubscribedTopics, 0, False).read(
            memoryview(metadata), struct.calcsize(">h"), exact=False
        )
    except Exception:
        return None
    return found.topics
