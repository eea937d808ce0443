"""Scripts of groups of the newer protocol: the codes of heartbeats, and what members are assigned."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from pyspark_kafkalog.protocol.consumer_protocol import Subscription, encode_subscription
from pyspark_kafkalog.protocol.consumer_protocol import TopicPartitions as OwnedPartitions
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.members import Classic
from tests.peers.scripted.session import Session, script


class Members:
    """Heartbeats of the members of one group, which subscribe to one topic of four partitions."""

    def __init__(self, session: Session, version: int | None = None) -> None:
        self.session, self.version = session, version
        self.topic = session.topic(partitions=4)
        self.topic_id = session.id_of(self.topic)
        self.group = session.name

    def beat(
        self, step: str, member: str, epoch: int, owned: tuple[int, ...] | None = None, **fields: Any
    ) -> None:
        topics = None
        if owned is not None:
            topics = (TopicPartitions(self.topic_id, owned),) if owned else ()
        fields = {"group_id": self.group, "topic_partitions": topics, **fields}
        request = ConsumerGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields)
        self.session.ask(step, request, self.version)

    def join(self, step: str, member: str, **fields: Any) -> None:
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": (self.topic,), **fields}
        self.beat(step, member, 0, (), **fields)


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def members_that_share_a_topic(session: Session) -> None:
    m = Members(session)
    m.beat("in no group", "m1", 1)
    m.beat("leaves no group", "m1", -1)
    m.join("the first joins", "m1")
    m.beat("all is well", "m1", 1)
    m.join("the second joins", "m2")
    m.beat("the first hears what to let go of", "m1", 1)
    m.beat("the first has not let go", "m1", 1)
    m.beat("the second waits", "m2", 2)
    m.beat("the first still has more", "m1", 1, (0, 1, 2))
    m.beat("the first has let go", "m1", 1, (0, 1))
    m.beat("the second gets its half", "m2", 2)
    m.beat("says everything", "m2", 2, (2, 3), rebalance_timeout_ms=60_000, subscribed_topic_names=(m.topic,))
    m.join("the second joins again", "m2")
    m.beat("an epoch to come", "m1", 7)
    m.beat("the epoch before, and no more than it has", "m1", 1, (0,))
    m.beat("the epoch before, and more than it has", "m1", 1, (0, 1, 2))
    m.beat("the epoch before, and nothing said", "m1", 1)
    m.beat("a stranger", "m3", 1)
    m.beat("subscribes to something else", "m2", 2, subscribed_topic_names=(f"{m.topic}-never",))
    m.beat("the second has let go", "m2", 2, ())
    m.beat("the first gets everything", "m1", 2)
    m.beat("the second leaves", "m2", -1)
    m.beat("the second leaves again", "m2", -1)
    m.beat("the first is left", "m1", 3)
    m.join("the third joins", "m3", server_assignor="range")
    m.beat("the first leaves", "m1", -1)
    m.beat("the third gets everything", "m3", 5)


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def heartbeats_that_are_wrong(session: Session) -> None:
    m = Members(session)
    m.join("a group without a name", "m", group_id="")
    m.join("an empty instance", "m", instance_id="")
    m.join("an empty rack", "m", rack_id="")
    m.join("no timeout", "m", rebalance_timeout_ms=-1)
    m.join("no subscription", "m", subscribed_topic_names=None)
    m.join("subscribed to nothing yet", "early", subscribed_topic_names=())
    m.beat("subscribed to something at last", "early", 1, subscribed_topic_names=(m.topic,))
    m.beat("leaves", "early", -1)
    m.join("an unknown assignor", "m", server_assignor="never")
    m.beat("a join that owns something", "m", 0, (1,), rebalance_timeout_ms=1, subscribed_topic_names=("t",))
    m.beat("a join that does not say", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=("t",))
    m.beat("an epoch below all", "m", -3)
    m.beat("back soon without an instance", "m", -2)
    m.beat("no member", "", 1)
    if session.version >= 1:
        m.join("a join without a name", "")
        m.join("a bad expression", "m", subscribed_topic_names=None, subscribed_topic_regex="a(")
        m.join("an expression with memory", "m", subscribed_topic_names=None, subscribed_topic_regex=r"(a)\1")
    m.join("a topic that there is not", "m", subscribed_topic_names=(f"{m.topic}-never",))


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def static_members(session: Session) -> None:
    m = Members(session)
    static = {"instance_id": "i"}
    m.join("joins", "m1", **static)
    m.join("another with its instance", "m2", **static)
    m.beat("another heartbeats with its instance", "m2", 1, **static)
    m.beat("heartbeats without it", "m1", 1)
    m.beat("an unknown instance", "m1", 1, instance_id="other")
    m.beat("another leaves for it", "m2", -1, **static)
    m.beat("back soon", "m1", -2, **static)
    m.beat("heartbeats though it is away", "m1", 1, **static)
    m.join("a dynamic one joins meanwhile", "m9")
    m.join("comes back", "m2", **static)
    m.beat("its old self", "m1", 1, **static)
    m.beat("its old self without the instance", "m1", 1)
    m.beat("leaves", "m2", -1, **static)


@script(ApiKey.CONSUMER_GROUP_DESCRIBE)
def groups_of_the_newer_protocol(session: Session) -> None:
    m = Members(session, 0)

    def describe(step: str) -> None:
        session.ask(step, ConsumerGroupDescribeRequest((m.group,)))

    def store(step: str, member: str, epoch: int, version: int) -> None:
        topics = (OffsetCommitRequestTopic(m.topic, (OffsetCommitRequestPartition(0, 3),)),)
        request = OffsetCommitRequest(m.group, epoch, member, topics=topics)
        session.ask(f"{step}, in {version}", request, version)

    def read(step: str, member: str | None, epoch: int) -> None:
        topics = (OffsetFetchRequestTopics(m.topic, (0, 1)),)
        group = OffsetFetchRequestGroup(m.group, member, epoch, topics)
        session.ask(step, OffsetFetchRequest(groups=(group,)), 9)

    session.ask("none and one without a name", ConsumerGroupDescribeRequest((m.group, "")))
    m.join("the first joins", "m1", rack_id="r")
    m.join("the second joins", "m2", instance_id="i", server_assignor="range")
    describe("with members")
    session.ask("as a classic group, in 5", DescribeGroupsRequest((m.group,)), 5)
    session.ask("as a classic group, in 6", DescribeGroupsRequest((m.group,)), 6)
    session.ask("of its type", ListGroupsRequest(("reconciling",), ("CONSUMER",)), 5)
    for each in (8, 9):
        store("commits", "m1", 1, each)
        store("a stale commit", "m1", 0, each)
        store("a commit to come", "m1", 9, each)
        store("a stranger's commit", "m3", 1, each)
        store("an administrator's commit", "", -1, each)
    read("reads", "m1", 1)
    read("reads with a stale epoch", "m1", 0)
    read("a stranger reads", "m3", 1)
    read("an administrator reads", None, -1)
    session.ask("a classic heartbeat", HeartbeatRequest(m.group, 1, "m1"), 4)
    session.ask("a stranger leaves as a classic member", LeaveGroupRequest(m.group, "m3"), 2)
    session.ask("is not deleted", DeleteGroupsRequest((m.group,)), 2)
    m.beat("the first leaves", "m1", -1)
    m.beat("the second leaves", "m2", -1, instance_id="i")
    describe("without members")
    store("an administrator's commit without members", "", -1, 8)
    session.ask("is deleted", DeleteGroupsRequest((m.group,)), 2)
    describe("once it is deleted")


class Mixed(Members):
    """Classic members of the same group too, which say what they own."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.classic = Classic(session, self.group)
        self.classic.sync_version, self.classic.beat_version, self.classic.leave_version = 5, 4, 5

    def rejoin(self, step: str, member: str, *owned: int, text: bytes | None = None, **fields: Any) -> Any:
        """Names for the new member are learned from the answer."""
        rows = (OwnedPartitions(self.topic, owned),) if owned else ()
        metadata = encode_subscription(Subscription((self.topic,), owned_partitions=rows))
        request = self.classic.joining(
            member, *fields.pop("names", ("range",)), text=metadata if text is None else text, **fields
        )
        return self.session.ask(step, request, 9, member_id="a classic member")

    def both(self, step: str, member: str, generation: int) -> None:
        self.classic.beat(f"{step}: heartbeat", member, generation)
        self.classic.sync(f"{step}: sync", member, generation)


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def classic_members_of_newer_groups(session: Session) -> None:
    m = Mixed(session)
    m.join("the first joins", "m1")
    m.rejoin("with another type", "", kind="connect")
    m.rejoin("with metadata of nothing", "c0", text=b"")
    c = m.rejoin("asks for an id", "").member_id
    m.rejoin("joins", c)
    m.both("in a later generation", c, 9)
    m.both("at first", c, 2)
    m.classic.sync("with another protocol", c, 2, name="sticky")
    m.rejoin("another with another protocol", "c9", names=("sticky",))
    m.beat("the first hears of it", "m1", 1)
    m.beat("the first has let go", "m1", 1, (0, 1))
    m.both("its half is free", c, 2)
    m.rejoin("joins again", c)
    m.both("with its half", c, 2)
    m.classic.commit("commits", m.topic, c, 2)
    m.classic.commit("commits what is stale", m.topic, c, 1)
    session.ask("described", ConsumerGroupDescribeRequest((m.group,)))
    m.both("of the first", "m1", 2)
    m.classic.leave("the first as a classic member", "m1")
    m.join("another of the newer protocol joins", "m2")
    m.both("told to join again", c, 2)
    m.rejoin("says what it owns", c, 2, 3)
    m.both("has something to let go of", c, 2)
    m.rejoin("has let go", c, 2)
    m.both("has one less", c, 3)
    m.beat("the last of the newer protocol leaves", "m2", -1)
    m.classic.beat("told to join a classic group", c, 3)
    m.rejoin("joins the classic group", c)
    m.classic.sync("leads it", c, 4, c)
    session.ask("as a classic group", DescribeGroupsRequest((m.group,)), 5)
    m.join("yet another of the newer protocol joins", "m3", subscribed_topic_names=(f"{m.topic}-never",))


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def newer_members_of_classic_groups(session: Session) -> None:
    m = Mixed(session)
    c = m.rejoin("asks for an id", "").member_id
    m.rejoin("joins", c)
    m.join("before it has synced", "m1", subscribed_topic_names=(f"{m.topic}-never",))
    m.both("before it had synced", c, 1)
    m.rejoin("joins again", c)
    m.both("in the newer group", c, 2)
    session.ask("described", ConsumerGroupDescribeRequest((m.group,)), 1)
    m.classic.leave("leaves", c)
    m.classic.leave("leaves again", c)
    m.beat("is left", "m1", 2, subscribed_topic_names=(m.topic,))


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def newer_members_of_other_groups(session: Session) -> None:
    m = Mixed(session)
    c = m.rejoin("asks for an id", "", kind="connect").member_id
    m.rejoin("joins", c, kind="connect")
    m.join("joins a group of another type", "m1")


@script(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def newer_members_of_groups_with_user_data(session: Session) -> None:
    m = Mixed(session)
    c = m.rejoin("asks for an id", "").member_id
    m.rejoin("joins", c)
    for step, user_data in (("without", b""), ("with", b"\0\0\0\1u")):
        assignment = b"\0\1\0\0\0\0" + (user_data or b"\xff\xff\xff\xff")
        given = (SyncGroupRequestAssignment(c, assignment),)
        request = SyncGroupRequest(m.group, 1 + bool(user_data), c, None, "consumer", "range", given)
        session.ask(f"{step} user data", request, 5)
        if not user_data:
            m.rejoin("joins again", c)
    m.join("does not join", "m1")
