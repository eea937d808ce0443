"""Consumer groups from outside. Each call looks up the coordinator, which may have moved since the last.
Functions take a `Cluster`, or ``bootstrap.servers`` for a single call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster, Where, by_topic, cluster_at
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import CommitFailed, ErrorCode, InvalidRequest, KafkaError, error_for, reason
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, DescribedAssignment
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType, FindCoordinatorRequest
from pyspark_kafkalog.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition

_KEYS_VERSION = 4  # since this version FindCoordinator has lists of keys
_CALLED = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}

T = TypeVar("T")
_ALL_VERSION, _GROUPS_VERSION = 2, 8  # since these OffsetFetch can request all of a group, and several groups
_STABLE_VERSION = 7  # since this version OffsetFetch can wait for offsets in open transactions

_NOT_A_MEMBER = frozenset({
    ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID, ErrorCode.STALE_MEMBER_EPOCH,
})  # fmt: skip
"""Codes with which a coordinator refuses a commit by a non-member or a former one."""


def coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> Connection:
    """A connection to the coordinator of ``key``, looked up once; the caller retries."""
    asked = cluster.any_connection(deadline)
    if asked.served(ApiKey.FIND_COORDINATOR) is None and asked.served(ApiKey.OFFSET_COMMIT) is not None:
        return asked  # 0.8.1 keeps offsets in ZooKeeper, which any broker uses
    node_id = find_coordinator(cluster, kind, key, deadline)
    return cluster.connection(node_id, deadline)


def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
    """Node id of the coordinator of ``key``; ``cluster`` then knows its address."""
    asked = cluster.any_connection(deadline)
    batched = asked.version(ApiKey.FIND_COORDINATOR) >= _KEYS_VERSION
    request = (
        FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
        if batched
        else FindCoordinatorRequest(key, kind)
    )
    answer = asked.request(request, deadline=deadline)
    found: Any = next((c for c in answer.coordinators if c.key == key), None) if batched else answer
    what = f"{_CALLED[kind]} {key!r}"
    if found is None:
        raise InvalidRequest(f"{asked.peer}: the FindCoordinator response lacks {what}")
    if found.error_code != ErrorCode.NONE:
        why = reason(found.error_code, "Describe", group=key, transactional_id=key, said=found.error_message)
        raise error_for(found.error_code, f"{asked.peer}: no coordinator for {what}: {why}")
    if found.node_id not in cluster.metadata([], deadline=deadline).brokers:
        cluster.metadata([], refresh=True, deadline=deadline)
    return int(found.node_id)


class CommittedOffset(msgspec.Struct, frozen=True):
    """A group's next offset in a partition; ``leader_epoch`` is -1 if unknown."""

    offset: int
    leader_epoch: int
    metadata: str


def committable(given: int | CommittedOffset, metadata: str = "") -> CommittedOffset:
    return given if isinstance(given, CommittedOffset) else CommittedOffset(given, -1, metadata)


class Committer(msgspec.Struct, frozen=True):
    """The member that commits; by default none. With KIP-848 the generation is the member epoch."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


OUTSIDE = Committer()


class GroupMetadata(msgspec.Struct, frozen=True):
    """A group and its committing member; a coordinator refuses a member that was replaced."""

    group: str
    member: Committer = OUTSIDE


DEAD = "Dead"


class GroupListing(msgspec.Struct, frozen=True):
    """A group. ``protocol_type`` is empty if it only has offsets, ``state`` before Kafka 2.6, and ``kind``
    ("classic", "consumer") before 3.8.
    """

    group: str
    protocol_type: str
    state: str
    kind: str = ""


class MemberDescription(msgspec.Struct, frozen=True):
    """A member; ``target`` is the assignment that a "consumer" group's member is moving to."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    instance_id: str | None = None
    target: tuple[TopicPartition, ...] | None = None


class GroupDescription(msgspec.Struct, frozen=True):
    """A group; ``protocol`` is its strategy. State "Empty" has only offsets, "Dead" does not exist."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]
    kind: str = "classic"


def list_groups(where: Where, *, deadline: Deadline | None = None) -> list[GroupListing]:
    """Groups of all brokers, by name. Retries brokers that still load theirs."""
    with cluster_at(where) as cluster:
        listings = {
            listed.group_id: GroupListing(
                listed.group_id, listed.protocol_type, listed.group_state, listed.group_type.lower()
            )
            for answer in ask_every_broker(cluster, "listing groups", ListGroupsRequest(), deadline)
            for listed in answer.groups
        }
    return [listings[name] for name in sorted(listings)]


def ask_every_broker(cluster: Cluster, doing: str, request: Any, deadline: Deadline | None) -> list[Any]:
    def ask(limit: Deadline) -> list[Any]:
        answers = []
        for node_id in sorted(cluster.metadata([], refresh=True, deadline=limit).brokers):
            connection = cluster.connection(node_id, limit)
            answer = connection.request(request, deadline=limit)
            if answer.error_code != ErrorCode.NONE:
                why = reason(answer.error_code, "Describe")
                raise error_for(answer.error_code, f"{connection.peer}: {doing}: {why}")
            answers.append(answer)
        return answers

    return cluster.retrying(doing, deadline).run(ask)


def describe_group(where: Where, group: str, *, deadline: Deadline | None = None) -> GroupDescription:
    """State and members of ``group``, of either kind."""

    def ask(connection: Connection, limit: Deadline) -> GroupDescription:
        answer = connection.request(DescribeGroupsRequest((group,)), deadline=limit)
        found = next((g for g in answer.groups if g.group_id == group), None)
        if found is None:
            raise InvalidRequest(f"{connection.peer}: the DescribeGroups response lacks {group!r}")
        # From version 6 an unknown group is an error.
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == DEAD:
            newer = _newer_group(connection, group, limit)
            return newer or GroupDescription(group, DEAD, "", "", ())
        if found.error_code != ErrorCode.NONE:
            raise _refusal(connection, group, found.error_code, "Describe")
        consumers = found.protocol_type == PROTOCOL_TYPE
        members = tuple(_member(member, consumers) for member in found.members)
        return GroupDescription(group, found.group_state, found.protocol_type, found.protocol_data, members)

    return at_coordinator(where, group, "describing", ask, deadline)


def delete_groups(where: Where, groups: Iterable[str], *, deadline: Deadline | None = None) -> None:
    """Delete groups without members. Raises `ServerError`: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
    for group in groups:

        def ask(connection: Connection, limit: Deadline, group: str = group) -> None:
            answer = connection.request(DeleteGroupsRequest((group,)), deadline=limit)
            for result in answer.results:
                if result.error_code != ErrorCode.NONE:
                    raise _refusal(connection, group, result.error_code, "Delete")

        at_coordinator(where, group, "deleting", ask, deadline)


def delete_group_offsets(
    where: Where, group: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> None:
    """Delete the group's offsets of ``partitions``, whose topics no member may be subscribed to.

    Raises `ServerError`: GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP if members are not
    consumers.
    """
    topics = tuple(
        OffsetDeleteRequestTopic(name, tuple(OffsetDeleteRequestPartition(n) for n in numbers))
        for name, numbers in _numbers(partitions).items()
    )

    def ask(connection: Connection, limit: Deadline) -> None:
        answer = connection.request(OffsetDeleteRequest(group, topics), deadline=limit)
        if answer.error_code != ErrorCode.NONE:
            raise _refusal(connection, group, answer.error_code, "Delete")
        for tp, code in error_codes(answer.topics).items():
            if code != ErrorCode.NONE:
                raise _refusal(connection, group, code, "Read", tp.topic)

    if topics:
        at_coordinator(where, group, "deleting offsets of", ask, deadline)


def committed_offsets(
    where: Where,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    stable: bool = False,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Committed offsets of ``group``, for ``partitions`` or all; partitions without one are left out.

    An unknown group has none. Retries until the deadline, by default ``request.timeout.ms``. ``stable`` also
    retries partitions with offsets in an open transaction (in the end UNSTABLE_OFFSET_COMMIT; before Kafka
    2.5 returns the offset before it), and needs ``partitions``, else coordinators omit pending offsets.
    """
    if stable and partitions is None:
        raise InvalidRequest(f"stable offsets of group {group!r} need a list of partitions")
    wanted = None if partitions is None else _numbers(partitions)
    if wanted is not None and not wanted:
        return {}

    def ask(connection: Connection, limit: Deadline) -> dict[TopicPartition, CommittedOffset]:
        version = connection.version(ApiKey.OFFSET_FETCH)
        asked = wanted
        if wanted is None and version < _ALL_VERSION:
            with cluster_at(where) as cluster:
                topics = cluster.metadata(None, deadline=limit).topics.values()
                asked = {topic.name: tuple(topic.partitions) for topic in topics}
        request = _fetch_request(group, asked, version, stable)
        return _taken(connection.request(request, deadline=limit), version, group, connection.peer)

    return at_coordinator(where, group, "looking up the offsets of", ask, deadline)


def commit_offsets(
    where: Where,
    group: str,
    offsets: Mapping[TopicPartition, int | CommittedOffset],
    *,
    metadata: str = "",
    member: Committer = OUTSIDE,
    deadline: Deadline | None = None,
) -> None:
    """Commit ``offsets`` (the next to read) for a group without members, or as one of its members.

    Retries until the deadline, by default ``request.timeout.ms``. If a partition does not exist, the others
    are stored. ``metadata`` is for offsets that are numbers.
    """
    left = {tp: committable(one, metadata) for tp, one in offsets.items()}
    for tp, one in left.items():
        if one.offset < 0:
            raise InvalidRequest(f"{tp}: offset {one.offset} cannot be committed for group {group!r}")
    if not left:
        return

    def ask(connection: Connection, limit: Deadline) -> None:
        answer = connection.request(_commit_request(group, left, member), deadline=limit)
        failed = _failures(answer, left, connection.peer)
        for tp in [tp for tp in left if tp not in failed]:
            del left[tp]
        # A final error has precedence: it ends the whole commit.
        for tp, code in sorted(failed.items(), key=lambda item: item[1].retriable):
            why = reason(code, "Read", topic=tp.topic, group=group)
            doing = f"{connection.peer}: committing {tp} for group {group!r}"
            raise _commit_failure(code, doing, member, why)

    at_coordinator(where, group, "committing for", ask, deadline)


def _member(member: DescribedGroupMember, consumer: bool) -> MemberDescription:
    partitions = decode_assignment(bytes(member.member_assignment)) if consumer else ()
    return MemberDescription(
        member.member_id, member.client_id, member.client_host, partitions, member.group_instance_id
    )


def _newer_group(connection: Connection, group: str, deadline: Deadline) -> GroupDescription | None:
    if not connection.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
        return None
    answer = connection.request(ConsumerGroupDescribeRequest((group,)), deadline=deadline)
    found = next((g for g in answer.groups if g.group_id == group), None)
    # Kafka 3.7 to 3.9 answer UNSUPPORTED_VERSION unless groups of this kind are switched on.
    if found is None or found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    if found.error_code != ErrorCode.NONE:
        raise _refusal(connection, group, found.error_code, "Describe")
    members = tuple(
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host,
            _named(member.assignment),
            member.instance_id,
            _named(member.target_assignment),
        )
        for member in found.members
    )
    return GroupDescription(
        group, found.group_state, PROTOCOL_TYPE, found.assignor_name, members, kind="consumer"
    )


def _named(assignment: DescribedAssignment) -> tuple[TopicPartition, ...]:
    rows = assignment.topic_partitions
    return tuple(sorted(TopicPartition(row.topic_name, number) for row in rows for number in row.partitions))


def _refusal(
    connection: Connection, group: str, code: ErrorCode, operation: str, topic: str = ""
) -> KafkaError:
    why = {
        ErrorCode.NON_EMPTY_GROUP: "it has members: stop them first",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members are subscribed to the topic: stop them first",
        ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    }.get(code) or reason(code, operation, group=group, topic=topic)
    return error_for(code, f"{connection.peer}: group {group!r}: {why}")


def at_coordinator(
    where: Where,
    key: str,
    doing: str,
    ask: Callable[[Connection, Deadline], T],
    deadline: Deadline | None,
    kind: CoordinatorType = CoordinatorType.GROUP,
) -> T:
    with cluster_at(where) as cluster:
        return cluster.retrying(f"{doing} {_CALLED[kind]} {key!r}", deadline).run(
            lambda limit: ask(coordinator(cluster, kind, key, limit), limit)
        )


def _numbers(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    return by_topic((tp, tp.partition) for tp in dict.fromkeys(partitions))


def _fetch_request(
    group: str, wanted: Mapping[str, tuple[int, ...]] | None, version: int, stable: bool
) -> OffsetFetchRequest:
    stable = stable and version >= _STABLE_VERSION
    if version >= _GROUPS_VERSION:
        groups = None if wanted is None else tuple(OffsetFetchRequestTopics(*row) for row in wanted.items())
        return OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup(group, topics=groups),), require_stable=stable
        )
    topics = None if wanted is None else tuple(OffsetFetchRequestTopic(*row) for row in wanted.items())
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)


def _taken(answer: Any, version: int, group: str, peer: str) -> dict[TopicPartition, CommittedOffset]:
    one = next((g for g in answer.groups if g.group_id == group), None) if answer.groups else answer
    if one is None:
        raise InvalidRequest(f"{peer}: the OffsetFetch response lacks group {group!r}")
    if one.error_code != ErrorCode.NONE:
        why = reason(one.error_code, "Describe", group=group)
        raise error_for(one.error_code, f"{peer}: offsets of group {group!r}: {why}")
    found = {}
    for topic in one.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if version < _ALL_VERSION and part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # this means that there is no offset
            if part.error_code != ErrorCode.NONE:
                why = reason(part.error_code, "Describe", topic=topic.name, group=group)
                text = f"{peer}: offset of group {group!r} for {tp}: {why}"
                raise error_for(part.error_code, text)
            if part.committed_offset >= 0:
                found[tp] = CommittedOffset(
                    part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                )
    return found


def _commit_request(
    group: str, offsets: Mapping[TopicPartition, CommittedOffset], member: Committer
) -> OffsetCommitRequest:
    topics = by_topic(
        (tp, OffsetCommitRequestPartition(tp.partition, one.offset, one.leader_epoch, -1, one.metadata))
        for tp, one in offsets.items()
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(OffsetCommitRequestTopic(*row) for row in topics.items()),
    )


def error_codes(topics: Iterable[Any]) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in topics
        for part in topic.partitions
    }


def _failures(answer: Any, asked: Collection[TopicPartition], peer: str) -> dict[TopicPartition, ErrorCode]:
    codes = error_codes(answer.topics)
    missing = sorted(str(tp) for tp in asked if tp not in codes)
    if missing:
        raise InvalidRequest(f"{peer}: the OffsetCommit response lacks {', '.join(missing)}")
    return {tp: codes[tp] for tp in asked if codes[tp] != ErrorCode.NONE}


def _commit_failure(code: ErrorCode, doing: str, member: Committer, why: str) -> KafkaError:
    if code in _NOT_A_MEMBER and member != OUTSIDE:
        return CommitFailed(
            code,
            f"{doing}: {code.name}: the group has rebalanced, and the partitions may be another member's by "
            "now. Records since the last commit will be read again",
        )
    if code in _NOT_A_MEMBER:
        why = "the group has members, and only they may commit for it: stop them, or use another group"
    elif code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        why = "no such topic or partition"
    return error_for(code, f"{doing}: {why}")
