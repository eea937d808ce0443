"""Scripts of groups with members, in the classic protocol."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.session import Session, script

SESSION_MS, REBALANCE_MS = 10_000, 10_000


class Classic:
    """Requests of one group's members, in versions that go with a version of JoinGroup."""

    def __init__(self, session: Session, group: str) -> None:
        self.session, self.group = session, group
        version = session.version
        self.with_id, self.static, self.typed = version >= 4, version >= 5, version >= 7
        self.sync_version, self.beat_version = min(version, 5), min(version, 4)
        self.leave_version = min(version, 5)

    def joining(
        self,
        member: str = "",
        *names: str,
        kind: str = "consumer",
        instance: str | None = None,
        text: bytes = b"m",
    ) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=tuple(JoinGroupRequestProtocol(name, text) for name in names or ("range",)),
        )

    def enter(self, step: str, word: str, **fields: Any) -> str:
        """Join as a new member, with the id that is given first where that is so; returns the member's id."""
        if self.with_id and not fields.get("instance"):
            answer = self.session.ask(f"{step}, asked for an id", self.joining(**fields), member_id=word)
            fields["member"] = answer.member_id
        answer = self.session.ask(step, self.joining(**fields), member_id=word)
        return str(answer.member_id)

    def sync(
        self,
        step: str,
        member: str,
        generation: int,
        *assigned: str,
        instance: str | None = None,
        name: str = "range",
    ) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=name,
            assignments=tuple(SyncGroupRequestAssignment(each, b"a") for each in assigned),
        )
        self.session.ask(step, request, self.sync_version)

    def beat(self, step: str, member: str, generation: int, instance: str | None = None) -> None:
        request = HeartbeatRequest(self.group, generation, member, instance)
        self.session.ask(step, request, self.beat_version)

    def leave(self, step: str, member: str, instance: str | None = None) -> None:
        if self.leave_version >= 3:
            request = LeaveGroupRequest(self.group, "", (MemberIdentity(member, instance),))
        else:
            request = LeaveGroupRequest(self.group, member)
        self.session.ask(step, request, self.leave_version)

    def commit(self, step: str, topic: str, member: str, generation: int) -> None:
        topics = (OffsetCommitRequestTopic(topic, (OffsetCommitRequestPartition(0, 3),)),)
        request = OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
        )
        self.session.ask(step, request, 8)

    def describe(self, step: str) -> None:
        self.session.ask(step, DescribeGroupsRequest((self.group,)), 5)

    def forget(self, step: str, topic: str) -> None:
        partitions = (OffsetDeleteRequestPartition(0),)
        topics = (OffsetDeleteRequestTopic(topic, partitions),)
        self.session.ask(step, OffsetDeleteRequest(self.group, topics), 0)

    def delete(self, step: str) -> None:
        self.session.ask(step, DeleteGroupsRequest((self.group,)), 2)


@script(ApiKey.JOIN_GROUP)
def a_group_of_one(session: Session) -> None:
    topic, group = session.topic(), Classic(session, session.name)
    group.beat("beat of no group", "nobody", 1)
    group.sync("sync of no group", "nobody", 1)
    group.leave("leave no group", "nobody")
    group.commit("commit of no group", topic, "nobody", 1)
    group.delete("delete no group")
    group.forget("offsets of no group", topic)
    session.ask("join with an id that is none", group.joining("nobody"))
    session.ask("join without a name", Classic(session, "").joining())
    session.ask(
        "join without protocols",
        JoinGroupRequest(group.group, SESSION_MS, REBALANCE_MS, "", None, "consumer"),
    )
    short = JoinGroupRequest(group.group, 10, REBALANCE_MS, "", None, "consumer")
    session.ask("join for too short", short)
    member = group.enter("join", "m1")
    group.beat("beat before the sync", member, 1)
    group.commit("commit before the sync", topic, member, 1)
    group.describe("described before the sync")
    group.sync("sync of another generation", member, 7)
    group.sync("sync of nobody", "nobody", 1)
    if group.typed:
        group.sync("sync of another protocol", member, 1, name="roundrobin")
    group.sync("sync", member, 1, member)
    group.sync("sync again", member, 1)
    group.beat("beat", member, 1)
    group.beat("beat of another generation", member, 7)
    group.beat("beat of nobody", "nobody", 1)
    group.commit("commit", topic, member, 1)
    group.commit("commit of another generation", topic, member, 7)
    group.commit("commit of nobody", topic, "nobody", 1)
    group.commit("commit as if without members", topic, "", -1)
    group.describe("described")
    group.delete("delete with a member")
    group.forget("offsets with a member", topic)
    session.ask("join with another type", group.joining(member, kind="connect"))
    session.ask("join again", group.joining(member))
    group.beat("beat of the generation before", member, 1)
    group.sync("sync in the second generation", member, 2, member)
    session.ask("join with another protocol", group.joining(member, "roundrobin"))
    group.sync("sync in the third generation", member, 3, member, name="roundrobin")
    group.describe("described with another protocol")
    group.leave("leave as nobody", "nobody")
    group.leave("leave", member)
    group.beat("beat after leaving", member, 3)
    group.describe("described when it is empty")
    group.forget("offsets when it is empty", topic)
    group.delete("delete")
    group.delete("delete again")
    group.describe("described when it is gone")


@script(ApiKey.JOIN_GROUP)
def a_group_of_two(session: Session) -> None:
    group = Classic(session, session.name)
    first = group.enter("the first joins", "m1")
    group.sync("the first syncs", first, 1, first)
    second = ""
    if group.with_id:
        second = session.ask("the second asks for an id", group.joining(), member_id="m2").member_id
    waiting = session.send(group.joining(second), session.version)
    _until_rebalancing(session, group, first)
    group.beat("the first beats while the second waits", first, 1)
    group.sync("the first syncs while the second waits", first, 1)
    again = session.send(group.joining(first), session.version)
    second = session.receive("the second joins", waiting, member_id="m2").member_id
    session.receive("the first joins again", again)
    group.sync("the leader syncs", first, 2, first, second)
    group.sync("the second syncs", second, 2)
    group.describe("described with two")
    group.leave("the second leaves", second)
    group.beat("the first beats after that", first, 2)
    session.ask("the first joins alone", group.joining(first))
    group.leave("the first leaves", first)
    group.describe("described when it is empty")


def _until_rebalancing(session: Session, group: Classic, member: str) -> None:
    """Wait until the second member's join has come in."""
    session.wait(lambda ask: ask(HeartbeatRequest(group.group, 1, member), 2).error_code == 27)


@script(ApiKey.JOIN_GROUP)
def static_members_of_classic_groups(session: Session) -> None:
    group = Classic(session, session.name)
    if not group.static:
        return
    first = group.enter("join", "m1", instance="i")
    group.sync("sync", first, 1, first, instance="i")
    again = session.ask("the instance comes back", group.joining(instance="i"), member_id="m1'").member_id
    group.beat("the new id beats", again, 1, "i")
    group.beat("the old id beats with the instance", first, 1, "i")
    group.beat("the old id beats alone", first, 1)
    group.sync("the old id syncs", first, 1, instance="i")
    session.ask("the old id joins", group.joining(first, instance="i"))
    group.describe("described")
    group.leave("another instance leaves", "", "j")
    group.leave("the instance leaves", "", "i")
    group.describe("described when it is empty")
