"""A group of the newer protocol under any order of heartbeats, lost answers, silence, topics and restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from kafkalog_broker.groups.consumer_group import (
    BACK_SOON,
    JOINING,
    LEAVING,
    Client,
    ConsumerGroup,
    ConsumerGroupSettings,
    MemberState,
    check_request,
    expired,
    heartbeat,
    matched_patterns,
    resumed,
)
from kafkalog_broker.groups.group_records import (
    RecordKey,
    build,
    changes,
    decode_key,
    encode_key,
)
from kafkalog_broker.groups.server_assignors import EMPTY, TargetAssignment, by_topic
from kafkalog_broker.groups.topic_patterns import matching
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from tests.support.examples import examples

SETTINGS = ConsumerGroupSettings(session_timeout_ms=45_000)
REBALANCE_TIMEOUT_MS = 60_000
NAMES = ("a", "b", "c")
SUBSCRIPTIONS = st.sampled_from([(), ("a",), ("b",), ("a", "b"), NAMES])


@dataclass(eq=False)
class Member:
    """A client as it should be: it reads what it was given and lets go of it before it says so."""

    id: str
    instance: str | None
    names: tuple[str, ...]
    pattern: str
    epoch: int = JOINING
    given: TargetAssignment = EMPTY
    owned: TargetAssignment = EMPTY
    said: TargetAssignment | None = None
    """What it last told that it owns; None: the next heartbeat says everything."""
    lost: int = 0
    """So many answers in a row it did not get."""
    beat_ms: int = 0


class Group(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.group: ConsumerGroup | None = None
        self.stored: dict[bytes, bytes] = {}
        self.topics: dict[str, StoredTopic] = {}
        self.live: dict[str, Member] = {}
        self.made = 0
        self.highest_epoch = 0

    @initialize(counts=st.lists(st.integers(0, 5), min_size=3, max_size=3))
    def begin(self, counts: list[int]) -> None:
        for name, count in zip(NAMES, counts, strict=True):
            if count:
                self.widen(name, count)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 9))
    def widen(self, name: str, count: int) -> None:
        old = self.topics.get(name)
        topic_id = old.topic_id if old else UUID(int=self._number())
        count = max(count, len(old.partitions) if old else 0)
        self.topics = {**self.topics, name: StoredTopic(topic_id, tuple(range(count)))}

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.topics = {n: t for n, t in self.topics.items() if n != name}

    @rule(target=members, names=SUBSCRIPTIONS, assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, names: tuple[str, ...], assignor: str | None) -> Any:
        if len(self.live) >= 6:
            return multiple()
        member = Member(f"m{self._number()}", None, names, "")
        self._beat(member, assignor=assignor)
        return member

    @rule(target=members, pattern=st.sampled_from(["a|b", "[a-c]", "z.*"]))
    def join_with_a_pattern(self, pattern: str) -> Any:
        if len(self.live) >= 6:
            return multiple()
        member = Member(f"m{self._number()}", None, (), pattern)
        self._beat(member)
        return member

    @rule(target=members, instance=st.sampled_from(["x", "y"]), names=SUBSCRIPTIONS)
    def join_as_static_member(self, instance: str, names: tuple[str, ...]) -> Any:
        member = Member(f"s{self._number()}", instance, names, "")
        before = self.group
        holders = (
            [m for m, known in before.members.items() if known.instance_id == instance] if before else []
        )
        if before is not None and any(before.progress[m].epoch != BACK_SOON for m in holders):
            with pytest.raises(ServerError) as refused:
                self._beat(member)
            assert refused.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
            assert self.group is before
            return multiple()
        self._beat(member)
        if holders and before is not None:
            assert self.group is not None
            assert self.group.members.keys() == {member.id, *before.members} - set(holders)
        return member

    @rule(member=members, full=st.booleans(), lost=st.booleans(), lets_go=st.booleans())
    def beat(self, member: Member, full: bool, lost: bool, lets_go: bool) -> None:
        if member.id not in self.live:
            return
        if lets_go:
            member.owned = member.given
        self._beat(member, full=full, lost=lost)

    @rule(member=members, names=SUBSCRIPTIONS)
    def subscribe(self, member: Member, names: tuple[str, ...]) -> None:
        if member.id in self.live:
            member.names, member.pattern, member.said = names, "", None
            self._beat(member)

    @rule(member=consumes(members))
    def leave(self, member: Member) -> None:
        if member.id in self.live:
            del self.live[member.id]
            self._send(member, self._request(member, epoch=LEAVING))

    @rule(member=consumes(members))
    def leave_for_a_moment(self, member: Member) -> None:
        if member.id in self.live and member.instance is not None:
            del self.live[member.id]
            self._send(member, self._request(member, epoch=BACK_SOON))

    @rule(member=consumes(members))
    def is_killed(self, member: Member) -> None:
        self.live.pop(member.id, None)

    @rule(seconds=st.sampled_from([1, 20, 44, 46]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 1000
        self._expire()

    @precondition(lambda self: self.group is not None)
    @rule()
    def patterns_are_matched(self) -> None:
        assert self.group is not None
        found = {p: matching(p, self.topics) for p in self.group.unmatched(self.topics, SETTINGS, self.now)}
        self._store(matched_patterns(self.group, found, self.topics, self.now))

    @precondition(lambda self: self.group is not None)
    @rule()
    def restart(self) -> None:
        self._store(resumed(self._replayed(), SETTINGS, self.now))
        for member in self.live.values():
            member.beat_ms = self.now

    @invariant()
    def a_partition_has_one_member(self) -> None:
        if self.group is not None:
            held = [w for p in self.group.progress.values() for w in (*p.assigned, *p.revoking)]
            assert len(held) == len(set(held))
        owned = [where for member in self.live.values() for where in member.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def what_is_stored_makes_the_state(self) -> None:
        if self.group is not None:
            assert self._replayed() == self.group

    @invariant()
    def epochs_never_fall(self) -> None:
        if self.group is not None:
            assert self.group.target_epoch <= self.group.epoch
            assert self.group.epoch >= self.highest_epoch
            self.highest_epoch = self.group.epoch

    def teardown(self) -> None:
        """Heartbeats alone, with members that let go at once, end with everything held and even."""
        self.now += SETTINGS.session_timeout_ms - 1
        for member in list(self.live.values()):
            self._beat(member)
        self.now += 1
        self._expire()  # those that left for a moment, were killed, or have let go of nothing in time
        if not self.live:
            return
        for _ in range(2 * len(self.live) + 4):
            if self.group is not None and self.group.unmatched(self.topics, SETTINGS, self.now):
                self.patterns_are_matched()
            for member in list(self.live.values()):
                member.owned = member.given
                self._beat(member)
                self.a_partition_has_one_member()
        group = self.group
        assert group is not None
        assert group.state == "Stable"
        assert {m.id for m in self.live.values()} == set(group.members)
        expected = {
            (topic.topic_id, p)
            for member in group.members
            for name, topic in self.topics.items()
            if name in group.subscribed_names(member)
            for p in topic.partitions
        }
        held = [where for member in self.live.values() for where in member.owned]
        assert sorted(held) == sorted(expected)
        for member in self.live.values():
            allowed = {self.topics[n].topic_id for n in group.subscribed_names(member.id) if n in self.topics}
            assert {topic for topic, _ in member.owned} <= allowed
            assert member.owned == group.progress[member.id].assigned
        alike = len({group.subscribed_names(m) for m in group.members}) == 1
        if alike and group.assignor(SETTINGS) == "uniform":
            sizes = [len(member.owned) for member in self.live.values()]
            assert max(sizes) - min(sizes) <= 1

    def _beat(
        self, member: Member, *, full: bool = False, lost: bool = False, assignor: str | None = None
    ) -> None:
        request = self._request(member, full=full, assignor=assignor)
        if request.topic_partitions is not None:
            member.said = member.owned
        try:
            assignment = self._send(member, request)
        except ServerError as e:
            if e.code is not ErrorCode.FENCED_MEMBER_EPOCH:
                raise
            assert member.lost, "who heartbeats in time and misses no answer stays"
            member.epoch, member.given, member.owned, member.said, member.lost = (
                JOINING,
                EMPTY,
                EMPTY,
                None,
                0,
            )
            self._beat(member)
            return
        assert self.group is not None
        self.live[member.id] = member
        member.beat_ms = self.now
        if lost and member.epoch != JOINING:
            member.said = None
            member.lost += 1
            return
        member.lost = 0
        epoch = self.group.progress[member.id].epoch
        assert epoch >= member.epoch
        member.epoch = epoch
        if assignment is not None:
            member.given = assignment
            member.owned |= assignment  # what it gained it reads at once, what it lost it lets go of in time

    def _request(
        self, member: Member, *, epoch: int | None = None, full: bool = False, assignor: str | None = None
    ) -> ConsumerGroupHeartbeatRequest:
        epoch = member.epoch if epoch is None else epoch
        everything = full or member.said is None
        owned = None
        if epoch >= 0 and (everything or member.said != member.owned):
            owned = tuple(TopicPartitions(topic, found) for topic, found in by_topic(member.owned))
        return ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member.id,
            member_epoch=epoch,
            instance_id=member.instance,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if everything else -1,
            subscribed_topic_names=member.names if everything else None,
            subscribed_topic_regex=member.pattern if everything else None,
            server_assignor=assignor,
            topic_partitions=owned,
        )

    def _send(self, member: Member, request: ConsumerGroupHeartbeatRequest) -> TargetAssignment | None:
        check_request(request, 1, SETTINGS)
        group = self.group if self.group is not None else ConsumerGroup("g")
        after, assignment = heartbeat(
            group, request, Client("client", "/host", 1, lambda _: True), self.topics, SETTINGS, self.now
        )
        self._store(after)
        return assignment

    def _expire(self) -> None:
        if self.group is None:
            return
        before = self.group
        after = expired(before, self.now)
        for gone in before.members.keys() - after.members.keys():
            member = self.live.pop(gone, None)
            if member is not None:
                slow = before.progress[gone].state is MemberState.UNREVOKED
                assert slow or self.now - member.beat_ms >= SETTINGS.session_timeout_ms
        assert after.deadline is None or after.deadline > self.now
        self._store(after)

    def _store(self, after: ConsumerGroup) -> None:
        for key, value in changes(self.group, after):
            if value is None:
                del self.stored[encode_key(key)]
            else:
                self.stored[encode_key(key)] = value
        self.group = after

    def _replayed(self) -> ConsumerGroup:
        values: dict[RecordKey, bytes] = {}
        for data, value in self.stored.items():
            key = decode_key(data)
            assert key is not None
            values[key] = value
        group = build("g", values)
        assert group is not None
        return replace(group)

    def _number(self) -> int:
        self.made += 1
        return self.made


TestGroup = Group.TestCase
TestGroup.settings = examples(100, stateful_step_count=40, report_multiple_bugs=False)
