"""Groups of the new protocol in a running broker: lock, log and timers around the pure state machine."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple
from uuid import uuid4

from msgspec import structs

from kafkalog_broker.groups import classic_members, consumer_group, group_records
from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import (
    JoinAnswer,
    JoinRequest,
    Moment,
    Phase,
    SyncAnswer,
    SyncRequest,
)
from kafkalog_broker.groups.group import Group, GroupShard, GroupTopic, NoSuchGroup, give
from kafkalog_broker.groups.server_assignors import TargetAssignment
from kafkalog_broker.groups.topic_patterns import matching
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.logs.state_topic import Shard, Stored
from kafkalog_broker.scheduler import Handle, Scheduler
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CorruptMessage, ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.types import NewRecord

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Heartbeat(NamedTuple):
    member_id: str
    epoch: int
    assignment: TargetAssignment | None


_Shard = Shard[GroupShard]


@dataclass(eq=False)
class ConsumerGroups:
    """*Thread-safe: a group is guarded by the lock of its shard, and so is its entry in ``_timers``.* A new
    state is appended to the log first; if the append fails, the old state stays. ``topics`` returns a
    snapshot of all topics, a new object after every change.
    """

    topic: GroupTopic
    clock: Clock
    timer: Scheduler
    _: KW_ONLY
    settings: consumer_group.ConsumerGroupSettings
    topics: Callable[[], consumer_group.TopicSnapshot]
    new_classic: Callable[[], ClassicGroup]
    watch_classic: Callable[[_Shard, Group], object]
    """Called with the lock for a group that has become a classic one."""
    _timers: dict[Group, tuple[int, Handle]] = field(default_factory=dict, init=False)
    _matching: set[Group] = field(default_factory=set, init=False)

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: consumer_group.Client) -> Heartbeat:
        """Raises `KafkaError` if refused; the group is then unchanged. As in Kafka, what the client may
        describe decides for all members which topics the group's patterns match, if they are matched now.
        """
        consumer_group.check_request(request, client.version, self.settings)
        if not request.member_id:
            member_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
            request = structs.replace(request, member_id=member_id)
        shard, topics = self.topic.shard_of(request.group_id), self.topics()
        with shard.lock:
            shard.check_loaded()
            group = shard.state.groups.get(request.group_id)
            if group is None or group.consumer is None:
                if request.member_epoch != consumer_group.JOINING:
                    raise NoSuchGroup(request.group_id)
                group = group or Group(request.group_id)
            before = group.consumer or self._upgraded(group, topics)
            after, assignment = consumer_group.heartbeat(
                before, request, client, topics, self.settings, self._now_ms()
            )
            classic = group.classic
            self._store(shard, group, after)
            answers = [] if classic is None else classic.close(ErrorCode.REBALANCE_IN_PROGRESS)
            shard.state.groups[group.name] = group
            self._watch(shard, group)
            unmatched = after.unmatched(topics, self.settings, self.clock.time_ms())
            stays = request.member_epoch >= consumer_group.JOINING
            if stays and unmatched and group not in self._matching:
                self._matching.add(group)
                self.timer.after(0.0, lambda: self._match(shard, group, client.may_describe))
        give(answers)
        progress = after.progress.get(request.member_id)
        return Heartbeat(
            request.member_id,
            request.member_epoch if progress is None or request.member_epoch < 0 else progress.epoch,
            assignment,
        )

    def get(self, name: str) -> consumer_group.ConsumerGroup:
        found = self.topic.look_at(name, lambda group: group.consumer)
        if found is None:
            raise NoSuchGroup(name, "of the newer protocol")
        return found

    def join(self, shard: _Shard, group: Group, request: JoinRequest) -> JoinAnswer:
        """A classic member joins. As in `sync`, `beat` and `leave`, the caller holds the shard's lock, and
        the group has members. Raises `KafkaError`.
        """
        try:
            after, answer = classic_members.join(
                _members_of(group), request, self.topics(), self.settings, self._now_ms()
            )
        except ServerError as e:
            return JoinAnswer(e.code, "")
        self._store_and_watch(shard, group, after)
        return answer

    def sync(self, shard: _Shard, group: Group, request: SyncRequest) -> SyncAnswer:
        after, answer = classic_members.sync(_members_of(group), request, self.topics(), self._now_ms())
        self._store_and_watch(shard, group, after)
        return answer

    def beat(
        self, shard: _Shard, group: Group, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        after, code = classic_members.heartbeat(
            _members_of(group), member_id, instance_id, generation, self._now_ms()
        )
        self._store_and_watch(shard, group, after)
        return code

    def leave(
        self, shard: _Shard, group: Group, members: Iterable[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        after, codes = classic_members.leave(_members_of(group), members)
        self._store_and_watch(shard, group, after)
        return codes

    def _store_and_watch(self, shard: _Shard, group: Group, after: consumer_group.ConsumerGroup) -> None:
        self._store(shard, group, after)
        self._watch(shard, group)

    def _upgraded(self, group: Group, topics: consumer_group.TopicSnapshot) -> consumer_group.ConsumerGroup:
        """The group as one of the newer protocol, not stored yet. Raises `NoSuchGroup`: it cannot be."""
        classic = group.classic
        if classic is None or classic.phase is Phase.EMPTY:
            return consumer_group.ConsumerGroup(group.name)
        why = "group.consumer.migration.policy forbids to upgrade it"
        if self.settings.upgrades and len(classic.members) <= self.settings.max_size:
            try:
                return classic_members.upgraded(group.name, classic, topics, self._now_ms())
            except KafkaError as e:
                why = str(e)
        raise NoSuchGroup(group.name, f"of the newer protocol: its members use the classic one, and {why}")

    def give_way(self, shard: _Shard, group: Group) -> None:
        if group.consumer is None:
            return
        self.topic.append(shard, group.tombstones(self.clock.time_ms()))
        group.consumer = None

    def load(self, shard: _Shard, stored: Stored) -> None:
        found: dict[str, dict[group_records.RecordKey, bytes]] = {}
        for offset, key_bytes, value in stored.values():
            try:
                key = group_records.decode_key(key_bytes)
            except CorruptMessage as e:
                _log.warning("%s: offset %d is skipped: %s", shard.partition, offset, e)
                continue
            if key is not None:
                found.setdefault(key.group, {})[key] = value
        for name, values in found.items():
            try:
                consumer = group_records.build(name, values)
            except CorruptMessage as e:
                _log.warning("%s: group %r is skipped: %s", shard.partition, name, e)
                continue
            if consumer is not None:
                group = shard.state.group(name)
                group.consumer = consumer_group.resumed(consumer, self.settings, self._now_ms())
                self._watch(shard, group)

    def let_go(self, group: Group) -> None:
        """Stops the timer of a group that another broker now owns. Caller holds the shard's lock."""
        known = self._timers.pop(group, None)
        if known is not None:
            known[1].cancel()

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def _store(self, shard: _Shard, group: Group, after: consumer_group.ConsumerGroup) -> None:
        before = group.consumer
        if before is not None and classic_members.turns_classic(before, after, self.settings):
            self._downgrade(shard, group, replace(after, epoch=before.epoch))
            return
        now_ms = self.clock.time_ms()
        records = group_records.records_of(group_records.changes(group.consumer, after), now_ms)
        if group.classic is not None and group.classic.in_log:
            records.insert(0, NewRecord(None, group_records.encode_group_key(group.name), now_ms))
        self.topic.append(shard, records)
        group.classic, group.consumer = None, after

    def _downgrade(self, shard: _Shard, group: Group, after: consumer_group.ConsumerGroup) -> None:
        """The last member of the newer protocol left: the others join a classic group, in the next generation
        after the epoch that they know.
        """
        now, classic = Moment.now(self.clock), self.new_classic()
        stored, protocols = classic_members.downgraded(after, self.topics(), now.time_ms)
        records = group_records.records_of(group_records.changes(group.consumer, None), now.time_ms)
        records.append(
            NewRecord(
                group_records.encode_group(stored), group_records.encode_group_key(group.name), now.time_ms
            )
        )
        self.topic.append(shard, records)
        classic.take_over(stored, protocols, now)
        group.classic, group.consumer = classic, None
        self.let_go(group)
        self.watch_classic(shard, group)
        _log.info("group %r is one of the classic protocol again", group.name)

    def _watch(self, shard: _Shard, group: Group) -> None:
        """Schedules `_expire`, which may run too early. Caller holds the shard's lock."""
        due = group.consumer.deadline if group.consumer is not None else None
        known = self._timers.get(group)
        if due is None or (known is not None and known[0] <= due):
            return
        if known is not None:
            known[1].cancel()
        self._look_again(shard, group, due, (due - self._now_ms()) / 1000)

    def _look_again(self, shard: _Shard, group: Group, due: int, seconds: float) -> None:
        timer = self.timer.after(seconds, lambda: self._expire(shard, group))
        self._timers[group] = due, timer

    def _expire(self, shard: _Shard, group: Group) -> None:
        with shard.lock:
            self._timers.pop(group, None)
            before = group.consumer
            if before is None or shard.given_up or shard.state.groups.get(group.name) is not group:
                return
            after = consumer_group.expired(before, self._now_ms())
            if after is not before:
                try:
                    self._store(shard, group, after)
                except KafkaError as e:
                    _log.warning("members of group %r could not be removed: %s", group.name, e)
                    self._look_again(shard, group, self._now_ms(), _RETRY_SECONDS)
                    return
            for member_id in before.members.keys() - after.members.keys():
                _log.info("group %r: member %s was silent for too long and is removed", group.name, member_id)
            self._watch(shard, group)

    def _match(self, shard: _Shard, group: Group, may_describe: Callable[[str], bool]) -> None:
        """Matches the group's patterns without holding the lock, because it takes long."""
        self._matching.discard(group)
        consumer, topics = group.consumer, self.topics()
        if consumer is None:
            return
        time_ms = self.clock.time_ms()
        names = [name for name in topics if name not in INTERNAL_TOPICS]
        patterns = consumer.unmatched(topics, self.settings, time_ms)
        found = {pattern: frozenset(filter(may_describe, _matched(pattern, names))) for pattern in patterns}
        with shard.lock:
            if group.consumer is None or shard.state.groups.get(group.name) is not group:
                return
            after = consumer_group.matched_patterns(group.consumer, found, topics, time_ms)
            try:
                self._store(shard, group, after)
            except KafkaError as e:
                _log.warning("what the patterns of group %r match is not stored: %s", group.name, e)


def _members_of(group: Group) -> consumer_group.ConsumerGroup:
    if group.consumer is None:
        raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.name!r} has no members")
    return group.consumer


def _matched(pattern: str, names: list[str]) -> frozenset[str]:
    """Stored patterns match nothing if RE2 is no longer installed."""
    try:
        return matching(pattern, names)
    except ServerError as e:
        _log.warning("%s", e)
        return frozenset()
