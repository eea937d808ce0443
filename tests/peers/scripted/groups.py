"""Scripts of committed offsets and of groups."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import DescribeGroupsRequest, ListGroupsRequest
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.session import (
    Session,
    script,
)


@script(ApiKey.OFFSET_COMMIT)
def committing_offsets(session: Session) -> None:
    topic, group = session.topic(), session.name

    def ask(step: str, name: str, partition: int = 0, text: str | None = "m", **fields: Any) -> None:
        partitions = (OffsetCommitRequestPartition(partition, 3, committed_metadata=text),)
        topics = (OffsetCommitRequestTopic(name, partitions),)
        session.ask(step, OffsetCommitRequest(**{"group_id": group, "topics": topics} | fields))

    if session.version < 2:
        return  # of clients that ask ZooKeeper, and others that are gone
    ask("one", topic)
    ask("no such partition", topic, 7)
    ask("no such topic", f"{topic}-never")
    ask("a long text", topic, text="x" * 5000)
    ask("no text", topic, text=None)
    ask(
        "of a member that there is not",
        topic,
        group_id=f"{group}-other",
        generation_id_or_member_epoch=1,
        member_id="m",
    )
    ask("of a group without a name", topic, group_id="")
    session.ask("what was stored", _stored(group, topic), 7)


def _stored(group: str, topic: str) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id=group, topics=(OffsetFetchRequestTopic(topic, (0, 7)),))


@script(ApiKey.OFFSET_FETCH)
def fetching_offsets(session: Session) -> None:
    if session.version < 2:
        return
    topic, group = session.topic(), session.name
    partitions = (OffsetCommitRequestPartition(0, 3, committed_metadata="m"),)
    request = OffsetCommitRequest(group_id=group, topics=(OffsetCommitRequestTopic(topic, partitions),))
    session.ask("stored", request, 8)

    def ask(step: str, name: str, topics: tuple[str, ...] | None) -> None:
        if session.version >= 8:
            several = (
                None if topics is None else tuple(OffsetFetchRequestTopics(each, (0, 7)) for each in topics)
            )
            groups = (OffsetFetchRequestGroup(group_id=name, topics=several),)
            session.ask(step, OffsetFetchRequest(groups=groups))
        else:
            one = None if topics is None else tuple(OffsetFetchRequestTopic(t, (0, 7)) for t in topics)
            session.ask(step, OffsetFetchRequest(group_id=name, topics=one))

    ask("of a topic", group, (topic,))
    ask("of a topic that is not there", group, (f"{topic}-never",))
    ask("all", group, None)
    ask("of a group that there is not", f"{group}-never", (topic,))
    ask("all of a group that there is not", f"{group}-never", None)


@script(ApiKey.FIND_COORDINATOR)
def finding_coordinators(session: Session) -> None:
    several = session.version >= 4

    def ask(step: str, *keys: str, kind: int = 0) -> None:
        given = {"coordinator_keys": keys} if several else {"key": keys[0]}
        session.ask(step, FindCoordinatorRequest(**given | ({"key_type": kind} if session.version else {})))

    ask("of a group", "g")
    ask("of an empty name", "")
    if session.version:
        ask("of a kind that is none", "g", kind=9)
    if several:
        ask("of two", "g", "h")


@script(ApiKey.DESCRIBE_GROUPS)
def describing_groups(session: Session) -> None:
    topic, group = session.topic(), session.name
    partitions = (OffsetCommitRequestPartition(0, 3),)
    session.ask(
        "stored",
        OffsetCommitRequest(group_id=group, topics=(OffsetCommitRequestTopic(topic, partitions),)),
        8,
    )
    session.ask("one with offsets and none", DescribeGroupsRequest((group, f"{group}-never")))
    session.ask("one without a name", DescribeGroupsRequest(("",)))
    if session.version >= 3:
        session.ask("with operations", DescribeGroupsRequest((group,), True))


@script(ApiKey.LIST_GROUPS)
def listing_groups(session: Session) -> None:
    if session.version >= 4:
        session.ask("of a state that is none", ListGroupsRequest(states_filter=("NoSuch",)))
        session.ask("of no such state now", ListGroupsRequest(states_filter=("Dead",)))
