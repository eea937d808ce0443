"""The coordinator of all groups: members and offsets of each are kept together in ``__consumer_offsets``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from broker.group.classic_group import ClassicGroup
from broker.group.classic_records import decode_group, decode_group_key, encode_group, encode_group_key
from broker.group.classic_rules import (
    CONSUMER,
    JoinAnswer,
    JoinRequest,
    Moment,
    Phase,
    Step,
    SyncAnswer,
    SyncRequest,
    Waiter,
)
from broker.group.consumer_group import MEMBER_EPOCHS_SINCE, Settings, Topics, check_commit, check_fetch
from broker.group.consumer_groups import ConsumerGroups
from broker.group.group import Group, GroupShard, NoSuchGroup
from broker.offsets.offset_records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker.scheduler import Scheduler
from broker.store.manager import LogManager
from broker.store.state_topic import (
    Appended,
    LastValues,
    Placement,
    Shard,
    StateTopic,
    Stored,
    encode_records,
)
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CoordinatorLoading, CorruptMessage, ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.steps import Steps, run_steps
from pyspark_kafkalog.types import NewRecord, TopicPartition

_LOG_CODES = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The log's codes as those that clients expect of a coordinator: the second makes them ask again."""

_A_STEP = 100
"""So many offsets are encoded between two turns of others."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How groups are treated, by the broker's properties of these names; times are in milliseconds."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    offsets_retention_ms: int


class DescribedMember(NamedTuple):
    """A member; metadata and assignment are its client's own bytes, and empty while the group rebalances."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Description(NamedTuple):
    """A group as it is now. ``protocol`` is "" while it rebalances."""

    group: str
    state: str
    kind: str
    protocol_type: str
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


_Shard = Shard[GroupShard]
_Answers = list[tuple[Waiter, Any]]


class GroupCoordinator:
    """*Thread-safe.* Every group; each partition's share is guarded by its shard's own lock.

    What a request brings about is stored first. Answers to those who wait are given outside the lock, by the
    thread that brought them about: a request's or the timer's.
    """

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        timer: Scheduler,
        settings: GroupSettings,
        consumer_settings: Settings,
        *,
        create: Callable[[], int],
        appended: Appended,
        topics: Callable[[], Topics] | None = None,
        placed: Callable[[], Placement | None] | None = None,
    ) -> None:
        """``create`` makes the offsets topic and returns its partition count; it is called on first need.
        ``topics`` are those of all brokers; without it those of ``logs``. ``placed``: as `StateTopic` has it.
        """
        self._clock = clock
        self._timer = timer
        self._settings = settings
        self._closed = False
        self._topic: StateTopic[GroupShard] = StateTopic(
            logs,
            OFFSETS_TOPIC,
            new=lambda _: GroupShard(),
            build=self._build,
            create=create,
            appended=appended,
            placed=placed,
        )
        self.consumers = ConsumerGroups(
            self._topic, clock, timer, settings=consumer_settings, topics=topics or logs.topics
        )
        self.start, self.load, self.open = self._topic.start, self._topic.load, self._topic.open
        self.refresh = self._topic.refresh

    def close(self) -> None:
        """Answer all who wait, and from now on those who come: the broker stops."""
        self._closed = True
        for shard in self._topic.shards:
            with shard.lock:
                # One that is still loaded has nobody who waits, and is not ours to look at.
                groups = shard.state.groups.values() if shard.loaded else ()
                answers = [each for g in groups if g.classic is not None for each in g.classic.close()]
            _give(answers)

    # Members.

    def join(self, name: str, request: JoinRequest, waiter: Waiter) -> Callable[[], None]:
        """A member joins; ``waiter`` gets its `JoinAnswer`, now or later, from any thread.

        Returns what is to be called if its connection ends before.
        Raises `KafkaError`: it cannot be asked now, or the session timeout is not allowed.
        """
        least, most = self._settings.min_session_timeout_ms, self._settings.max_session_timeout_ms
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
            self.consumers.give_way(shard, group)
            classic = group.classic or self._new_classic()
            step = classic.join(request, waiter, self._now())
            if not classic.is_void:
                group.classic = classic
                shard.state.groups[name] = group
            answers = self._take(shard, group, step)
        _give(answers)
        member_id = request.member_id or request.new_id
        return lambda: self._abandoned(name, member_id, waiter)

    def sync(self, name: str, request: SyncRequest, waiter: Waiter) -> None:
        """A member asks for its assignment; ``waiter`` gets a `SyncAnswer`, now or later, from any thread.
        Raises `KafkaError`: it cannot be asked now, or the group has no members.
        """
        shard = self._shard_of_members(name)
        with shard.lock:
            self._check_open(shard)
            group, classic = self._with_members(shard, name)
            answers = self._take(shard, group, classic.sync(request, waiter, self._now()))
        _give(answers)

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """What the member is told. While its group is loaded all is well: its session begins after that.
        Raises `KafkaError`: the group has no members.
        """
        shard = self._shard_of_members(name)
        with shard.lock:
            if not shard.loaded and not shard.elsewhere:
                return ErrorCode.NONE
            shard.check_loaded()
            _, classic = self._with_members(shard, name)
            return classic.heartbeat(member_id, instance_id, generation, self._now())

    def leave(self, name: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members go, each by its id, its instance or both; a code for each.
        Raises `KafkaError`: it cannot be asked now, or the group has no members.
        """
        shard = self._shard_of_members(name)
        with shard.lock:
            shard.check_loaded()
            group, classic = self._with_members(shard, name)
            codes, step = classic.leave(members, self._now())
            answers = self._take(shard, group, step)
        _give(answers)
        return codes

    def describe(self, name: str) -> Description:
        """The group as it is now.
        Raises `NoSuchGroup`, or `CoordinatorLoading`: the group's partition is still being read.
        """
        return self._look_at(name, _describe)

    def groups(self) -> list[Description]:
        """All groups in the order of their names, without their members.
        Raises `CoordinatorLoading`: a partition is still being read, and its groups are not known.
        """
        self._topic.check_found()
        found: list[Description] = []
        for shard in self._topic.shards:
            with shard.lock:
                if shard.elsewhere:
                    continue
                shard.check_loaded()
                groups = shard.state.groups.values()
                found += [Description(g.name, g.state, g.kind, g.protocol_type) for g in groups]
        return sorted(found)

    def delete(self, name: str) -> None:
        """Delete a group without members, and its offsets.
        Raises `NoSuchGroup`, or `KafkaError`: it has members, or the log refused the append.
        """
        shard = self._shard_of_known(name)
        with shard.lock:
            group = self._known(shard, name)
            code = ErrorCode.NONE if group.classic is None else group.classic.check_deletion()
            if group.consumer is not None and group.consumer.members:
                code = ErrorCode.NON_EMPTY_GROUP
            if code is not ErrorCode.NONE:
                raise ServerError(code, f"group {name!r} is in state {group.state}")
            self._delete(shard, group, tuple(group.offsets), whole=True)

    # Offsets.

    def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        producer: tuple[int, int] | None = None,
        version: int = MEMBER_EPOCHS_SINCE,
        encoded: bytearray | None = None,
    ) -> None:
        """Store ``offsets``; returns when they are in the log, and so survive the process. A member gives its
        generation or epoch; without members anybody may commit. ``version`` is that of OffsetCommit.

        Those of a ``producer``, id and epoch, count when its transaction is committed: `end_transaction`.
        ``encoded``, if given, is what `encode_offsets` made of all this; it is changed in place.

        Raises:
            NoSuchGroup: it does not exist, and a member was to commit.
            CoordinatorLoading: the group's partition is still being read; nothing is stored.
            KafkaError: the member may not commit now, or the log refused the append; nothing is stored.
        """
        if not offsets:
            return
        shard = self._shard_of(name)
        with shard.lock:
            shard.check_loaded()
            group = shard.state.groups.get(name)
            if group is None and generation >= 0:
                raise NoSuchGroup(name)
            group = group or Group(name)
            in_transaction = producer is not None
            if group.consumer is not None:
                check_commit(group.consumer, member_id, generation, None if in_transaction else version)
            else:
                # One that has only offsets has no generation: it answers as an empty group does.
                classic = group.classic or self._new_classic()
                code = classic.check_commit(
                    member_id, instance_id, generation, self._now(), in_transaction=in_transaction
                )
                if code is not ErrorCode.NONE:
                    raise ServerError(code, f"group {name!r} in state {group.state}: member {member_id!r}")
            if encoded is None:
                encoded = run_steps(encode_offsets(name, offsets, self._clock.time_ms(), producer))
            values = {OffsetKey(name, partition): value for partition, value in offsets.items()}
            try:
                place = self._topic.append_encoded(shard, encoded)
            except KafkaError as e:
                raise _as_coordinator(e) from e
            if producer is not None:
                shard.state.pending.add(producer[0], place, values)
                return
            shard.state.pending.overtake(values, place)
            group.offsets.update(offsets)
            shard.state.groups[name] = group

    def partition_of(self, name: str) -> TopicPartition:
        """The partition that keeps the group, made if need be. Raises `KafkaError`."""
        return self._topic.shard_of(name).partition

    @property
    def opened(self) -> bool:
        """Whether the offsets topic is known."""
        return bool(self._topic.shards)

    def end_transaction(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> int:
        """Append the marker of a producer's transaction to a partition of the offsets topic, whose offsets
        count from now on, or never. Returns its size in bytes. Raises as `commit`.
        """
        if partition.partition >= len(self._topic.shards):
            raise CoordinatorLoading(f"{partition} is not known here yet")
        shard = self._topic.shards[partition.partition]
        with shard.lock:
            shard.check_loaded()
            size = self._topic.end_transaction(shard, producer_id, epoch, commit=commit)
            for key, value in shard.state.pending.end(producer_id, commit=commit).items():
                shard.state.group(key.group).offsets[key.partition] = value
        return size

    def unstable(self, name: str, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of ``partitions`` for which an open transaction has stored an offset. Raises as `fetch`."""
        self._topic.check_found()
        if not self._topic.shards:
            return set()
        shard = self._topic.shard_of(name)
        with shard.lock:
            shard.check_loaded()
            return {each for each in partitions if shard.state.pending.has(OffsetKey(name, each))}

    def fetch(
        self, name: str, member_id: str | None = None, epoch: int = -1
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """All that the group has stored; empty for an unknown one. Members of the newer protocol give their
        id and epoch.

        Raises `CoordinatorLoading`: the group's partition is still being read; or `ServerError`: there is no
        such member, or it is at another epoch.
        """

        def committed(group: Group) -> Mapping[TopicPartition, CommittedOffset]:
            if group.consumer is not None:
                check_fetch(group.consumer, member_id, epoch)
            return dict(group.offsets)

        try:
            return self._look_at(name, committed)
        except NoSuchGroup:
            return {}

    def delete_offsets(
        self, name: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Forget the offsets of these partitions, but for those whose topics a member subscribes to.
        Raises `NoSuchGroup`, or `KafkaError`: its members do not say what they read, or the log refused.
        """
        shard = self._shard_of_known(name)
        with shard.lock:
            group = self._known(shard, name)
            classic = group.classic
            in_use = group.consumer.all_subscribed() if group.consumer is not None else frozenset[str]()
            if classic is not None and classic.phase is not Phase.EMPTY:
                if classic.protocol_type != CONSUMER:
                    raise ServerError(ErrorCode.NON_EMPTY_GROUP, f"group {name!r} is in state {group.state}")
                subscribed = classic.subscribed_topics()
                in_use = frozenset(p.topic for p in partitions) if subscribed is None else subscribed
            codes = {
                p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if p.topic in in_use else ErrorCode.NONE
                for p in partitions
            }
            gone = [p for p, code in codes.items() if not code and p in group.offsets]
            self._delete(shard, group, gone)
        return codes

    def forgetting_topic(self, topic: str) -> Steps[None]:
        """Delete what all groups stored for ``topic``: a new topic of its name starts without offsets. A step
        for each group; nobody can commit any more.

        Where the disk refuses, the offsets stay, and a warning is logged.
        """
        for shard, group in self._each_group():
            with shard.lock:
                if shard.state.groups.get(group.name) is group:
                    self._try_to_delete(shard, group, [p for p in group.offsets if p.topic == topic])
            yield None

    def expire(self) -> None:
        """Delete offsets older than ``offsets.retention.minutes``, or than the commit itself asked for, and
        empty groups without offsets.

        The age of an empty group's offsets counts from when it became so, of others' from the commit; what a
        member subscribes to has none, nor has what an open transaction has stored as well. What the disk
        refuses to delete is tried again the next time.
        """
        now_ms = self._clock.time_ms()
        for shard, group in self._each_group():
            with shard.lock:
                if shard.state.groups.get(group.name) is group:
                    gone = self._expired(shard, group, now_ms)
                    whole = group.is_idle and len(gone) == len(group.offsets)
                    self._try_to_delete(shard, group, gone, whole=whole)

    def _expired(self, shard: _Shard, group: Group, now_ms: int) -> list[TopicPartition]:
        classic, since_ms = group.classic, -1
        in_use = group.consumer.all_subscribed() if group.consumer is not None else frozenset[str]()
        if classic is not None and classic.phase is Phase.EMPTY:
            since_ms = classic.since_ms
        elif classic is not None:
            if classic.phase is not Phase.STABLE or classic.protocol_type != CONSUMER:
                return []
            subscribed = classic.subscribed_topics()
            if subscribed is None:
                return []
            in_use = subscribed
        retention_ms = self._settings.offsets_retention_ms
        return [
            partition
            for partition, value in group.offsets.items()
            if value.is_expired(now_ms, retention_ms, since_ms)
            and partition.topic not in in_use
            and not shard.state.pending.has(OffsetKey(group.name, partition))
        ]

    def _each_group(self) -> Iterator[tuple[_Shard, Group]]:
        """All that are loaded, without the locks, so that requests need not wait for the whole round: who
        takes a group's lock looks whether it is still there.
        """
        for shard in self._topic.shards:
            with shard.lock:
                groups = tuple(shard.state.groups.values()) if shard.loaded else ()
            for group in groups:
                yield shard, group

    def _try_to_delete(
        self, shard: _Shard, group: Group, gone: Sequence[TopicPartition], *, whole: bool = False
    ) -> None:
        try:
            self._delete(shard, group, gone, whole=whole)
        except KafkaError as e:
            _log.warning("%d offsets could not be deleted from %s: %s", len(gone), shard.partition, e)

    def _delete(
        self, shard: _Shard, group: Group, gone: Sequence[TopicPartition], *, whole: bool = False
    ) -> None:
        """Write tombstones of these offsets, and of the group if that is to go. Caller holds the lock."""
        now_ms = self._clock.time_ms()
        keys = [OffsetKey(group.name, partition) for partition in gone]
        records = [NewRecord(None, encode_key(key), now_ms) for key in keys]
        if whole:
            records += group.tombstones(now_ms)
        if records:
            shard.state.pending.overtake(keys, self._topic.append(shard, records))
        for partition in gone:
            del group.offsets[partition]
        if whole or group.is_void:
            del shard.state.groups[group.name]

    # Within.

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.time_ms())

    def _new_classic(self) -> ClassicGroup:
        settings = self._settings
        return ClassicGroup(max_size=settings.max_size, initial_delay_ms=settings.initial_rebalance_delay_ms)

    def _shard_of_members(self, name: str) -> _Shard:
        if not name:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")
        return self._shard_of(name)

    def _shard_of(self, name: str) -> _Shard:
        try:
            return self._topic.shard_of(name)
        except KafkaError as e:
            raise _as_coordinator(e) from e

    def _shard_of_known(self, name: str) -> _Shard:
        self._topic.check_found()
        if not self._topic.shards:
            raise NoSuchGroup(name)
        return self._topic.shard_of(name)

    def _look_at(self, name: str, look: Callable[[Group], _T]) -> _T:
        shard = self._shard_of_known(name)
        with shard.lock:
            return look(self._known(shard, name))

    def _known(self, shard: _Shard, name: str) -> Group:
        shard.check_loaded()
        try:
            return shard.state.groups[name]
        except KeyError:
            raise NoSuchGroup(name) from None

    def _with_members(self, shard: _Shard, name: str) -> tuple[Group, ClassicGroup]:
        """The group that a member says it is in."""
        group = shard.state.groups.get(name)
        if group is None or group.classic is None:
            raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {name!r} has no members")
        return group, group.classic

    def _check_open(self, shard: _Shard) -> None:
        shard.check_loaded()
        if self._closed:
            raise ServerError(ErrorCode.NOT_COORDINATOR, "the broker stops")

    def _take(self, shard: _Shard, group: Group, step: Step) -> _Answers:
        """Store what a step has to store, and see to the timer. Returns who may be answered now."""
        classic = group.classic
        if classic is None:  # it was refused, and left nothing
            return step.answers
        if step.stored is not None:
            try:
                key, value = encode_group_key(group.name), encode_group(step.stored)
                self._topic.append(shard, [NewRecord(value, key, step.stored.current_state_timestamp)])
                classic.in_log = True
            except KafkaError as e:
                _log.warning("group %r is not stored: %s", group.name, e)
                step = classic.not_stored(step, _as_coordinator(e).code, self._now())
        if group.is_void:
            shard.state.groups.pop(group.name, None)
        elif step.sooner:
            self._set_timer(shard, group)
        return step.answers

    def _set_timer(self, shard: _Shard, group: Group) -> None:
        """Have `_tick` called in time; it may be called too early. Caller holds the lock."""
        if group.classic is None:
            return
        due = group.classic.deadline()
        if due >= group.wakes:
            return
        if group.timer is not None:
            group.timer.cancel()
        group.wakes = due
        group.timer = self._timer.after(due - self._clock.monotonic(), lambda: self._tick(shard, group))

    def _tick(self, shard: _Shard, group: Group) -> None:
        with shard.lock:
            group.wakes = math.inf
            if self._closed or group.classic is None or shard.state.groups.get(group.name) is not group:
                return
            answers = self._take(shard, group, group.classic.tick(self._now()))
        _give(answers)

    def _abandoned(self, name: str, member_id: str, waiter: Waiter) -> None:
        shard = self._topic.shard_of(name)
        with shard.lock:
            group = shard.state.groups.get(name)
            if group is None or group.classic is None:
                return
            answers = self._take(shard, group, group.classic.abandon(member_id, waiter, self._now()))
        _give(answers)

    def _build(self, shard: _Shard, stored: Stored) -> None:
        """Be as the log says. Nobody else has the shard before it is loaded."""
        now = self._now()
        for producer_id, found in stored.open.items():
            for key, place, value in _decoded(shard, found):
                if value is not None:
                    shard.state.pending.add(producer_id, place, {key: value})
        for key, place, value in _decoded(shard, stored.last):
            shard.state.pending.overtake((key,), place)
            if value is not None:
                shard.state.group(key.group).offsets[key.partition] = value
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


def encode_offsets(
    name: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    now_ms: int,
    producer: tuple[int, int] | None = None,
) -> Steps[bytearray]:
    """The records that store these offsets of a group, as `GroupCoordinator.commit` takes them."""
    records = []
    for partition, value in offsets.items():
        records.append(NewRecord(encode_value(value), encode_key(OffsetKey(name, partition)), now_ms))
        if not len(records) % _A_STEP:
            yield None
    return (yield from encode_records(records, producer))


def _decoded(shard: _Shard, found: LastValues) -> Iterator[tuple[OffsetKey, int, CommittedOffset | None]]:
    """The records of offsets, with their own offsets in the log; None where one was deleted."""
    for key_bytes, (offset, value) in found.items():
        try:
            key = decode_key(key_bytes)
            if key is not None:
                yield key, offset, None if value is None else decode_value(value)
        except CorruptMessage as e:
            _log.warning("%s: offset %d is skipped: %s", shard.partition, offset, e)


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


def _as_coordinator(error: KafkaError) -> ServerError:
    return ServerError(_LOG_CODES.get(error.code, error.code), str(error))


def _give(answers: Iterable[tuple[Waiter, JoinAnswer | SyncAnswer]]) -> None:
    """Answer those who wait; one that fails concerns its own client, never the request that brought it."""
    for waiter, answer in answers:
        try:
            waiter(answer)
        except Exception:
            _log.exception("an answer could not be given")
