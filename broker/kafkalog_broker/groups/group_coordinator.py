"""The group coordinator: members and offsets of all groups, stored in ``__consumer_offsets``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import msgspec

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import GroupOutcome, JoinRequest, Moment, Phase, SyncRequest, Waiter
from kafkalog_broker.groups.committed_offsets import GroupOffsets
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings, TopicSnapshot
from kafkalog_broker.groups.consumer_group_coordinator import ConsumerGroups
from kafkalog_broker.groups.group import (
    Group,
    GroupShard,
    GroupTopic,
    NoSuchGroup,
    as_coordinator,
    give,
    known_group,
)
from kafkalog_broker.groups.group_records import (
    decode_group,
    decode_group_key,
    encode_group,
    encode_group_key,
)
from kafkalog_broker.logs.state_topic import Shard, Stored
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CoordinatorLoading, CorruptMessage, ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.types import NewRecord, TopicPartition

_log = logging.getLogger(__name__)


class GroupSettings(msgspec.Struct, frozen=True):
    """The broker's properties of these names; times are in milliseconds."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    offsets_retention_ms: int


class DescribedMember(NamedTuple):
    """``metadata`` and ``assignment`` are the client's bytes, empty during a rebalance."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Description(NamedTuple):
    group: str
    state: str
    kind: str
    protocol_type: str
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


_Shard = Shard[GroupShard]
_Answers = list[tuple[Waiter, Any]]


@dataclass(eq=False)
class GroupCoordinator:
    """*Thread-safe: each shard's lock guards the groups of one partition.* Changes are stored before they are
    answered. Waiters are called outside the lock, in the thread of the request or timer. ``topics`` are those
    of the whole cluster as known here; ``newest_topics`` asks for them.
    """

    topic: GroupTopic
    clock: Clock
    timer: Scheduler
    settings: GroupSettings
    consumer_settings: ConsumerGroupSettings
    _: KW_ONLY
    topics: Callable[[], TopicSnapshot]
    newest_topics: Callable[[], TopicSnapshot] | None = None

    def __post_init__(self) -> None:
        self._closed = False
        self.topic.build = self._build
        self.offsets = GroupOffsets(
            self.topic, self.clock, retention_ms=self.settings.offsets_retention_ms,
            new_classic=self._new_classic, newest_topics=self.newest_topics or self.topics,
        )  # fmt: skip
        self.consumers = ConsumerGroups(
            self.topic, self.clock, self.timer, settings=self.consumer_settings, topics=self.topics,
            new_classic=self._new_classic, watch_classic=self._set_timer,
        )  # fmt: skip
        self.load, self.open = self.topic.load, self.topic.open

    def look(self) -> None:
        """Updates which groups this broker coordinates. Drops those that moved away and sends their waiting
        clients to the new coordinator; those that moved here answer COORDINATOR_LOAD_IN_PROGRESS until
        `load`.
        """
        for shard in self.topic.look():
            with shard.lock:
                before, shard.state = shard.state, GroupShard()
                answers = _closing(before)
                for group in before.groups.values():
                    self.consumers.let_go(group)
            _log.info("%s: its %d groups are let go of", shard.partition, len(before.groups))
            give(answers)

    def close(self) -> None:
        """Answers all waiting clients, and refuses new ones: the broker stops."""
        self._closed = True
        for shard in self.topic.shards:
            with shard.lock:
                # A shard being loaded has no waiters, and its state belongs to the loader.
                answers = _closing(shard.state) if shard.loaded else []
            give(answers)

    # Members.

    def join(self, name: str, request: JoinRequest, waiter: Waiter) -> Callable[[], None]:
        """``waiter`` gets a `JoinAnswer`. Call what it returns if the connection closes first. Raises as
        `leave`.
        """
        least, most = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if name and not least <= request.session_timeout_ms <= most:
            raise ServerError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"group {name!r}: session.timeout.ms={request.session_timeout_ms} is not between "
                f"group.min.session.timeout.ms={least} and group.max.session.timeout.ms={most}",
            )
        shard = self._shard_of_members(name)
        with shard.lock:
            self._check_open(shard)
            group = shard.state.groups.get(name)
            if group is None and request.member_id:
                raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {name!r} does not exist")
            group = group or Group(name)
            if group.consumer is not None and group.consumer.members:
                answers: _Answers = [(waiter, self.consumers.join(shard, group, request))]
            else:
                answers = self._join(shard, group, request, waiter)
        give(answers)
        member_id = request.member_id or request.new_id
        return lambda: self._abandoned(name, member_id, waiter)

    def _join(self, shard: _Shard, group: Group, request: JoinRequest, waiter: Waiter) -> _Answers:
        self.consumers.give_way(shard, group)
        classic = group.classic or self._new_classic()
        step = classic.join(request, waiter, Moment.now(self.clock))
        if not classic.is_void:
            group.classic = classic
            shard.state.groups[group.name] = group
        return self._take(shard, group, step)

    def sync(self, name: str, request: SyncRequest, waiter: Waiter) -> None:
        """``waiter`` gets a `SyncAnswer`, now or later, from any thread. Raises as `leave`."""
        shard = self._shard_of_members(name)
        with shard.lock:
            self._check_open(shard)
            group, classic = self._with_members(shard, name)
            if classic is None:
                answers: _Answers = [(waiter, self.consumers.sync(shard, group, request))]
            else:
                answers = self._take(shard, group, classic.sync(request, waiter, Moment.now(self.clock)))
        give(answers)

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """The answer's error code; NONE while the group is loading, as its sessions start after that."""
        shard = self._shard_of_members(name)
        with shard.lock:
            try:
                shard.check_loaded()
            except CoordinatorLoading:
                return ErrorCode.NONE
            group, classic = self._with_members(shard, name)
            if classic is None:
                return self.consumers.beat(shard, group, member_id, instance_id, generation)
            return classic.heartbeat(member_id, instance_id, generation, Moment.now(self.clock))

    def leave(self, name: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """A code for each member, named by member or instance id. Raises `KafkaError`: not available."""
        shard = self._shard_of_members(name)
        with shard.lock:
            shard.check_loaded()
            group, classic = self._with_members(shard, name)
            if classic is None:
                return self.consumers.leave(shard, group, members)
            codes, step = classic.leave(members, Moment.now(self.clock))
            answers = self._take(shard, group, step)
        give(answers)
        return codes

    def describe(self, name: str) -> Description:
        return self.topic.look_at(name, _describe)

    def groups(self) -> list[Description]:
        """All groups by name, without members; omits groups of partitions that were lost."""
        self.topic.check_found()
        found: list[Description] = []
        for shard in self.topic.shards:
            with shard.lock:
                try:
                    shard.check_loaded()
                except ServerError:
                    continue
                groups = shard.state.groups.values()
                found += [Description(g.name, g.state, g.kind, g.protocol_type) for g in groups]
        return sorted(found)

    def delete(self, name: str) -> None:
        """Raises `NoSuchGroup`, or `KafkaError`: it has members, or the log refused the append."""
        shard = self.topic.known_shard(name)
        with shard.lock:
            group = known_group(shard, name)
            code = ErrorCode.NONE if group.classic is None else group.classic.check_deletion()
            if group.consumer is not None and group.consumer.members:
                code = ErrorCode.NON_EMPTY_GROUP
            if code is not ErrorCode.NONE:
                raise ServerError(code, f"group {name!r} is in state {group.state}")
            self.offsets.delete_records(shard, group, tuple(group.offsets), whole=True)

    def partition_of(self, name: str) -> TopicPartition:
        """The partition that stores the group; creates the topic if needed. Raises `KafkaError`."""
        return self.topic.shard_of(name).partition

    @property
    def opened(self) -> bool:
        return bool(self.topic.shards)

    # Internals.

    def _new_classic(self) -> ClassicGroup:
        settings = self.settings
        return ClassicGroup(max_size=settings.max_size, initial_delay_ms=settings.initial_rebalance_delay_ms)

    def _shard_of_members(self, name: str) -> _Shard:
        if not name:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")
        return self.topic.shard_for(name)

    def _with_members(self, shard: _Shard, name: str) -> tuple[Group, ClassicGroup | None]:
        group = shard.state.groups.get(name)
        if group is None or (group.classic is None and group.consumer is None):
            raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {name!r} has no members")
        return group, group.classic

    def _check_open(self, shard: _Shard) -> None:
        shard.check_loaded()
        if self._closed:
            raise ServerError(ErrorCode.NOT_COORDINATOR, "the broker stops")

    def _take(self, shard: _Shard, group: Group, step: GroupOutcome) -> _Answers:
        classic = group.classic
        if classic is None:  # a refused join of a new group
            return step.answers
        if step.stored is not None:
            try:
                key, value = encode_group_key(group.name), encode_group(step.stored)
                self.topic.append(shard, [NewRecord(value, key, step.stored.current_state_timestamp)])
                classic.in_log = True
            except KafkaError as e:
                _log.warning("group %r is not stored: %s", group.name, e)
                step = classic.not_stored(step, as_coordinator(e).code, Moment.now(self.clock))
        if group.is_void:
            shard.state.groups.pop(group.name, None)
        elif step.sooner:
            self._set_timer(shard, group)
        return step.answers

    def _set_timer(self, shard: _Shard, group: Group) -> None:
        """Schedules `_tick`, which may run too early. Caller holds the lock."""
        if group.classic is None:
            return
        due = group.classic.deadline()
        if due >= group.wakes:
            return
        if group.timer is not None:
            group.timer.cancel()
        group.wakes = due
        group.timer = self.timer.after(due - self.clock.monotonic(), lambda: self._tick(shard, group))

    def _tick(self, shard: _Shard, group: Group) -> None:
        with shard.lock:
            group.wakes = math.inf
            if self._closed or shard.given_up or group.classic is None:
                return
            if shard.state.groups.get(group.name) is not group:
                return
            answers = self._take(shard, group, group.classic.tick(Moment.now(self.clock)))
        give(answers)

    def _abandoned(self, name: str, member_id: str, waiter: Waiter) -> None:
        shard = self.topic.shard_of(name)
        with shard.lock:
            group = shard.state.groups.get(name)
            if group is None or group.classic is None:
                return
            answers = self._take(
                shard, group, group.classic.abandon(member_id, waiter, Moment.now(self.clock))
            )
        give(answers)

    def _build(self, shard: _Shard, stored: Stored) -> None:
        now = Moment.now(self.clock)
        self.offsets.load(shard, stored)
        for offset, key_bytes, data in stored.values():
            try:
                name = decode_group_key(key_bytes)
                if name is not None:
                    classic = self._new_classic()
                    classic.restore(decode_group(data), now)
                    shard.state.group(name).classic = classic
            except CorruptMessage as e:
                _log.warning("%s: offset %d is skipped: %s", shard.partition, offset, e)
        for group in tuple(shard.state.groups.values()):
            self._set_timer(shard, group)
        self.consumers.load(shard, stored)


def _closing(state: GroupShard) -> _Answers:
    return [each for g in state.groups.values() if g.classic is not None for each in g.classic.close()]


def _describe(group: Group) -> Description:
    classic = group.classic
    if group.consumer is not None:
        raise NoSuchGroup(group.name, "of the classic protocol")
    if classic is None:
        return Description(group.name, group.state, group.kind, "")
    stable = classic.phase is Phase.STABLE
    members = tuple(
        DescribedMember(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.metadata(classic.protocol) if stable else b"",
            m.assignment if stable else b"",
        )
        for m in classic.members.values()
    )
    protocol = classic.protocol or "" if stable else ""
    return Description(group.name, group.state, group.kind, group.protocol_type, protocol, members)
