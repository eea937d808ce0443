"""A member of a classic group. Pure. Eager strategies revoke all partitions before joining; cooperative ones
after the sync what moves elsewhere, and then rejoin. Source: protocol guide, Group membership; KIP-62, 345,
394, 429.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pyspark_kafkalog.client.discovery import TopicMetadata
from pyspark_kafkalog.client.groups import Committer
from pyspark_kafkalog.config.client_config import COOPERATIVE, STICKY, GroupConsumerConfig
from pyspark_kafkalog.consumer.assignors import ASSIGNORS, Subscriber
from pyspark_kafkalog.consumer.member import (
    COORDINATOR_MOVED,
    NEVER,
    Member,
    PartitionChange,
    Rebalance,
    refused,
)
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol import consumer_protocol
from pyspark_kafkalog.protocol.api import groups as api
from pyspark_kafkalog.protocol.api.groups import MemberIdentity as Leaver
from pyspark_kafkalog.types import TopicPartition

logger = logging.getLogger(__name__)


class _State(Enum):
    OUTSIDE = "outside"  # not subscribed, or failed
    REVOKING = "revoking"  # waits for the program to give up partitions before it joins
    JOINING = "joining"
    ASSIGNING = "assigning"  # as leader, waits for the topics' metadata
    SYNCING = "syncing"
    STABLE = "stable"
    EXPIRED = "expired"  # the program stopped polling


class ClassicMember(Member):
    def __init__(self, config: GroupConsumerConfig) -> None:
        super().__init__(config)
        self._cooperative = all(name == COOPERATIVE for name in config.strategies)
        self._state = _State.OUTSIDE
        self._joined_for: frozenset[str] = frozenset()
        self._member_id, self._generation, self._protocol = "", -1, ""
        self._previous: tuple[frozenset[TopicPartition], int] = frozenset(), -1
        """The last assignment and its generation; `sticky` keeps it although it was revoked."""
        self._join: api.JoinGroupResponse | None = None
        self._assignments: tuple[api.SyncGroupRequestAssignment, ...] = ()
        self._again = False  # whether to rejoin once the program has handled ``pending``
        self._led: dict[str, int] | None = None
        """As leader: partition counts of the group's topics at the assignment."""
        self._not_before = self._heartbeat_at = 0.0

    @property
    def identity(self) -> Committer:
        return Committer(self._member_id, self._generation, self._instance)

    @property
    def joined(self) -> bool:
        return self._state not in (_State.OUTSIDE, _State.EXPIRED)

    @property
    def watched_topics(self) -> frozenset[str]:
        return frozenset(self._led or ())

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        if topics == self._topics and self._state is not _State.OUTSIDE:
            return
        self._topics = topics
        if self._state in (_State.OUTSIDE, _State.STABLE):
            self.failure = None
            self._rejoin(now)

    def request(self, now: float) -> Any | None:
        if now < self._not_before:
            return None
        if self._state is _State.JOINING:
            return self._join_request()
        if self._state is _State.SYNCING:
            return self._sync_request()
        if self._generation >= 0 and self.joined and now >= self._heartbeat_at:
            self._heartbeat_at = now + self._config.heartbeat_interval_ms / 1000
            return api.HeartbeatRequest(self._group, self._generation, self._member_id, self._instance)
        return None

    def due(self) -> float:
        if self._state in (_State.JOINING, _State.SYNCING):
            return self._not_before
        if self._generation >= 0 and self.joined:
            return max(self._heartbeat_at, self._not_before)
        return NEVER

    def answered(self, request: Any, answer: Any, now: float) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._backoff.reset()
        if isinstance(request, api.JoinGroupRequest):
            if self._state is not _State.JOINING:
                pass
            elif code == ErrorCode.NONE:
                self._after_join(answer, now)
            elif code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            elif code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._not_before = now + self._backoff.next()
            else:
                self._refused(code, now)
        elif isinstance(request, api.SyncGroupRequest):
            if self._state is not _State.SYNCING:
                pass
            elif code == ErrorCode.NONE:
                self._after_sync(answer, now)
            elif code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin(now)
            else:
                self._refused(code, now)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self._state is _State.STABLE:
                self._rejoin(now)
        elif code != ErrorCode.NONE:
            self._refused(code, now)

    def failed(self, now: float) -> None:
        self._not_before = now + self._backoff.next()

    def learn(self, topics: Mapping[str, TopicMetadata], now: float) -> None:
        counts = {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}
        self.wanted_topics = ()
        if self._state is _State.ASSIGNING and self._join is not None:
            self._assign(self._join, counts, now)
        elif self._led is not None and self._state is _State.STABLE:
            now_there = {name: counts.get(name, 0) for name in self._led if name in topics}
            if any(count != self._led[name] for name, count in now_there.items()):
                logger.info("group %r: partitions of its topics have changed: joining again", self._group)
                self._rejoin(now)

    def _continue(self, rebalance: Rebalance, now: float) -> None:  # noqa: ARG002
        if self._state is _State.REVOKING:
            self._state = _State.JOINING
        elif self._again or self._state is _State.EXPIRED:
            self._rejoin(now)

    def _join_at(self, at: float, now: float) -> None:
        self._not_before = at
        self._rejoin(now)

    def expire(self) -> Any | None:
        goodbye = self.leave()
        self._forget_membership(forget_id=self._instance is None)
        self._state = _State.EXPIRED
        self._lose()
        return goodbye

    def leave(self) -> Any | None:
        if not self._member_id or self._instance is not None or not self.joined:
            return None
        return api.LeaveGroupRequest(self._group, self._member_id, (Leaver(self._member_id),))

    def _rejoin(self, now: float) -> None:
        """Revokes what must be given up, then joins; first waits for the program to handle ``pending``."""
        self._again = False
        if self.pending:
            self._again = True
            return
        kept = frozenset(tp for tp in self._owned if self._cooperative and tp.topic in self._topics)
        self._heartbeat_at = min(self._heartbeat_at, now + self._config.heartbeat_interval_ms / 1000)
        if self._owned - kept:
            self._state = _State.REVOKING
            gone = tuple(sorted(self._owned - kept))
            self.pending.append(Rebalance(PartitionChange.REVOKED, gone, kept))
        else:
            self._state = _State.JOINING

    def _join_request(self) -> api.JoinGroupRequest:
        config, self._joined_for = self._config, self._topics
        timeouts = config.session_timeout_ms, config.max_poll_interval_ms
        member = self._member_id, self._instance
        known = (api.JoinGroupRequestProtocol(name, self._metadata(name)) for name in config.strategies)
        kind = consumer_protocol.PROTOCOL_TYPE
        return api.JoinGroupRequest(self._group, *timeouts, *member, kind, tuple(known))

    def _metadata(self, strategy: str) -> bytes:
        user_data, generation = None, self._previous[1]
        if strategy == STICKY:
            user_data = consumer_protocol.encode_previous(*self._previous)
        elif strategy == COOPERATIVE:
            user_data = generation.to_bytes(4, "big", signed=True)
        owned = consumer_protocol.grouped(sorted(self._owned))
        return consumer_protocol.encode_subscription(
            consumer_protocol.Subscription(tuple(sorted(self._topics)), user_data, owned, generation)
        )

    def _after_join(self, answer: api.JoinGroupResponse, now: float) -> None:
        self._member_id, self._generation = answer.member_id, answer.generation_id
        self._protocol, self._join, self._assignments = answer.protocol_name or "", answer, ()
        self._heartbeat_at = now + self._config.heartbeat_interval_ms / 1000
        self._led = None
        if answer.leader != self._member_id:
            self._state = _State.SYNCING
            return
        try:
            subscribers = self._subscribers(answer.members)
        except InvalidRequest as e:
            self._fail(e)
            return
        self._state = _State.ASSIGNING
        topics = {name for one in subscribers for name in one.topics} | self._topics
        self.wanted_topics = tuple(sorted(topics))

    def _subscribers(self, members: tuple[api.JoinGroupResponseMember, ...]) -> list[Subscriber]:
        subscribers = []
        for member in members:
            told = consumer_protocol.decode_subscription(member.metadata)
            owned, generation = consumer_protocol.flat(told.owned_partitions), told.generation_id
            if self._protocol == STICKY:
                owned, generation = consumer_protocol.decode_previous(told.user_data)
            elif generation < 0 and told.user_data is not None and len(told.user_data) == 4:
                generation = int.from_bytes(told.user_data, "big", signed=True)
            topics, instance = frozenset(told.topics), member.group_instance_id
            subscribers.append(Subscriber(member.member_id, topics, instance, owned, generation))
        return subscribers

    def _assign(self, join: api.JoinGroupResponse, counts: Mapping[str, int], now: float) -> None:
        assignor = ASSIGNORS.get(self._protocol)
        if assignor is None:
            text = f"group {self._group!r} uses the strategy {self._protocol!r}, which this member lacks"
            self._fail(InvalidRequest(text))
            return
        subscribers = self._subscribers(join.members)
        topics = {name for one in subscribers for name in one.topics}
        self._led = {name: counts.get(name, 0) for name in topics | self._topics}
        # v9: a static leader came back; the broker keeps the previous assignment.
        if not join.skip_assignment:
            shares = assignor(subscribers, {name: n for name, n in counts.items() if name in topics})
            self._assignments = tuple(
                api.SyncGroupRequestAssignment(member, consumer_protocol.encode_assignment(held))
                for member, held in shares.items()
            )
        self._state, self._not_before = _State.SYNCING, now

    def _sync_request(self) -> api.SyncGroupRequest:
        member = self._group, self._generation, self._member_id, self._instance
        protocol = consumer_protocol.PROTOCOL_TYPE, self._protocol
        return api.SyncGroupRequest(*member, *protocol, self._assignments)

    def _after_sync(self, answer: api.SyncGroupResponse, now: float) -> None:
        try:
            assigned = frozenset(consumer_protocol.decode_assignment(answer.assignment))
        except InvalidRequest as e:
            self._fail(e)
            return
        self._state = _State.STABLE
        self._heartbeat_at = now + self._config.heartbeat_interval_ms / 1000
        self._previous = assigned, self._generation
        revoked, added = tuple(sorted(self._owned - assigned)), tuple(sorted(assigned - self._owned))
        if revoked:
            # The next round assigns these to others.
            self.pending.append(Rebalance(PartitionChange.REVOKED, revoked, self._owned & assigned))
        self._again = bool(revoked) or self._joined_for != self._topics
        self.pending.append(Rebalance(PartitionChange.ASSIGNED, added, assigned))

    def _refused(self, code: ErrorCode, now: float) -> None:
        if code in COORDINATOR_MOVED or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or code.retriable:
            self._not_before = now + self._backoff.next()
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            logger.info("group %r: %s: joining again", self._group, code.name)
            self._forget_membership(forget_id=code == ErrorCode.UNKNOWN_MEMBER_ID)
            self._lose()
            if not self.pending:
                self._rejoin(now)
        else:
            self._fail(refused(self._group, code))

    def _forget_membership(self, *, forget_id: bool) -> None:
        self._generation, self._join, self._led, self.wanted_topics = -1, None, None, ()
        if forget_id:
            self._member_id = ""

    def _lose(self) -> None:
        expired = self._state is _State.EXPIRED
        if not expired:
            self._state = _State.REVOKING
        self._again, self._previous = False, (frozenset(), -1)
        self._lose_all(expired=expired)

    def _fail(self, error: KafkaError) -> None:
        self._forget_membership(forget_id=False)
        self._lose()
        self._state = _State.OUTSIDE
        self.failure = error
