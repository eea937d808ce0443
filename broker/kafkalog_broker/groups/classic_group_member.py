"""A member of a classic group."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kafkalog_broker.groups.classic_records import StoredMember
from kafkalog_broker.groups.classic_rules import JoinRequest, Protocols, Waiter

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
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout / 1000,
            rebalance_ms / 1000,
            ((protocol or "", stored.subscription),),
            knows_its_id=True,
            is_new=False,
            assignment=stored.assignment,
        )

    def stored(self, protocol: str | None) -> StoredMember:
        return StoredMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=int(self.rebalance_seconds * 1000),
            session_timeout=int(self.session_seconds * 1000),
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    def take(self, request: JoinRequest) -> None:
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_seconds = request.session_timeout_ms / 1000
        self.rebalance_seconds = request.rebalance_timeout_ms / 1000
        self.protocols = request.protocols

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for ``protocol``; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def wait_on(self, now: float) -> None:
        """Suspends the session while the member waits for an answer; a new member gets a limit."""
        self.expires = now + _NEW_MEMBER_SECONDS if self.is_new else math.inf

    def renew(self, now: float) -> None:
        self.expires = now + self.session_seconds

    def heard_of(self, now: float) -> None:
        """Renews the session, unless it is suspended because the member waits for an answer."""
        if self.joining is None and self.syncing is None:
            self.renew(now)
