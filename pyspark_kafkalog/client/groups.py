"""Consumer groups seen from outside: which there are, what they have committed, and commits in their name.

Nothing here joins a group. Each call asks the group's coordinator, which is looked up anew: groups are asked
for seldom, and a coordinator that moved would be tried in vain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, error_for
from pyspark_kafkalog.protocol.api.describe_groups import (
    Assignment,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from pyspark_kafkalog.protocol.api.find_coordinator import CoordinatorType, FindCoordinatorRequest
from pyspark_kafkalog.protocol.api.list_groups import ListGroupsRequest
from pyspark_kafkalog.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.codec import codec
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition

_KEYS_VERSION = 4
"""From this version on FindCoordinator looks up lists of keys."""

_CALLED = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}


def coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> Connection:
    """A connection to the broker that looks after ``key``, looked up once; the caller repeats.

    Raises:
        ServerError: COORDINATOR_NOT_AVAILABLE and its like.
        ConnectionLost: no broker, or not this one, can be reached.
    """
    asked = cluster.any_connection(deadline)
    if asked.served(ApiKey.FIND_COORDINATOR) is None and asked.served(ApiKey.OFFSET_COMMIT) is not None:
        return asked  # 0.8.1 keeps offsets in ZooKeeper, and any broker gets there
    node_id = find_coordinator(cluster, kind, key, deadline)
    return cluster.connection(node_id, deadline)


def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
    """The node that looks after ``key``; ``cluster`` knows its address then. Raises as `coordinator`."""
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
        raise InvalidRequest(f"{asked.peer}: the answer to FindCoordinator leaves out {what}")
    if found.error_code != ErrorCode.NONE:
        why = found.error_message or found.error_code.name
        raise error_for(found.error_code, f"{asked.peer}: no coordinator for {what}: {why}")
    if found.node_id not in cluster.metadata([], deadline=deadline).brokers:
        cluster.metadata([], refresh=True, deadline=deadline)
    return int(found.node_id)


T = TypeVar("T")

_ALL_VERSION, _GROUPS_VERSION = 2, 8
"""From these versions on OffsetFetch asks for all that a group has, and for lists of groups."""

_STABLE_VERSION = 7
"""From this version on OffsetFetch can ask for offsets that no transaction may still change."""

_CONSUMER = "consumer"
"""The protocol type of groups whose members are consumers: the layout of their assignments is known."""

_VERSION_BYTES = 2
"""What an assignment's bytes begin with."""

_HAS_MEMBERS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}
)
"""How a coordinator refuses a commit from outside of a group that is being used."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has stored for a partition: the offset to be read next; epoch -1 where none was given."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group. ``protocol_type`` is empty for one that only keeps offsets; ``state``, before Kafka 2.6."""

    group: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group, and what it reads; nothing where the members are no consumers."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it: "Empty" has offsets alone, "Dead" is not there.

    ``protocol`` names the strategy by which the members share the partitions.
    """

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


def list_groups(cluster: Cluster, *, deadline: Deadline | None = None) -> list[GroupListing]:
    """The groups of all brokers, by name. Brokers that still load theirs are asked again until the deadline.

    Raises:
        ConnectionLost: a broker could not be reached in time.
        ServerError: the groups may not be seen.
    """
    attempts = cluster.retrying("listing groups", deadline)
    while True:
        try:
            return _listed(cluster, attempts.deadline)
        except KafkaError as e:
            attempts.failed(e)


def describe_group(cluster: Cluster, group: str, *, deadline: Deadline | None = None) -> GroupDescription:
    """State and members of ``group``. Those of the newer protocol (KIP-848) are described as "Dead".

    Raises:
        ConnectionLost: the coordinator could not be reached in time.
        ServerError: the group may not be seen, or has no name.
    """

    def ask(connection: Connection, limit: Deadline) -> GroupDescription:
        answer = connection.request(DescribeGroupsRequest((group,)), deadline=limit)
        found = next((g for g in answer.groups if g.group_id == group), None)
        if found is None:
            raise InvalidRequest(f"{connection.peer}: the answer to DescribeGroups leaves out {group!r}")
        if found.error_code != ErrorCode.NONE:
            raise error_for(found.error_code, f"{connection.peer}: group {group!r}: {found.error_code.name}")
        consumers = found.protocol_type == _CONSUMER
        members = tuple(_member(member, consumers) for member in found.members)
        return GroupDescription(group, found.group_state, found.protocol_type, found.protocol_data, members)

    return _asking(cluster, group, "describing", ask, deadline)


def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    stable: bool = False,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """What ``group`` has committed, for ``partitions`` or for all it has; without those it has nothing of.

    A group never heard of has committed nothing. Coordinators that move or still load are asked again until
    the deadline, by default ``request.timeout.ms``. With ``stable`` so are those that have offsets of a
    transaction which is not ended yet (from Kafka 2.5 on; older brokers answer with what was before it). That
    needs ``partitions``: asked for all, coordinators leave out what is pending and new.

    Raises:
        InvalidRequest: ``stable`` without ``partitions``.
        ConnectionLost: the coordinator could not be reached in time.
        ServerError: the group may not be seen; UNSTABLE_OFFSET_COMMIT, a transaction was not ended in time.
    """
    if stable and partitions is None:
        raise InvalidRequest(f"stable offsets of group {group!r} can be had for given partitions only")
    wanted = None if partitions is None else _by_topic(dict.fromkeys(partitions))
    if wanted is not None and not wanted:
        return {}

    def ask(connection: Connection, limit: Deadline) -> dict[TopicPartition, CommittedOffset]:
        version = connection.version(ApiKey.OFFSET_FETCH)
        asked = wanted
        if wanted is None and version < _ALL_VERSION:
            asked = _by_topic(_all_partitions(cluster, limit))
        request = _fetch_request(group, asked, version, stable)
        return _taken(connection.request(request, deadline=limit), version, group, connection.peer)

    return _asking(cluster, group, "looking up what is committed by", ask, deadline)


def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    metadata: str = "",
    deadline: Deadline | None = None,
) -> None:
    """Store ``offsets``, those to be read next, for a group without members; returns when they are stored.

    What failed for a passing reason is sent again until the deadline, by default ``request.timeout.ms``.

    Raises:
        ServerError: UNKNOWN_MEMBER_ID and its like: the group has members, which alone may commit for it.
        UnknownTopicOrPartition: a partition does not exist; the others are stored.
        InvalidRequest: an offset below 0.
        ConnectionLost: the coordinator could not be reached in time.
    """
    for tp, offset in offsets.items():
        if offset < 0:
            raise InvalidRequest(f"{tp}: offset {offset} cannot be committed for group {group!r}")
    left = dict(offsets)
    if not left:
        return

    def ask(connection: Connection, limit: Deadline) -> None:
        answer = connection.request(_commit_request(group, left, metadata), deadline=limit)
        failed = _failures(answer, left, connection.peer)
        for tp in [tp for tp in left if tp not in failed]:
            del left[tp]
        # One that will not pass counts most: it ends the whole commit.
        for tp, code in sorted(failed.items(), key=lambda item: item[1].retriable):
            raise error_for(code, f"{connection.peer}: committing {tp} for group {group!r}: {_reason(code)}")

    _asking(cluster, group, "committing for", ask, deadline)


def _listed(cluster: Cluster, deadline: Deadline) -> list[GroupListing]:
    """One request to each broker: each knows the groups that it coordinates."""
    found: dict[str, GroupListing] = {}
    for node_id in sorted(cluster.metadata([], refresh=True, deadline=deadline).brokers):
        connection = cluster.connection(node_id, deadline)
        answer = connection.request(ListGroupsRequest(), deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"{connection.peer}: listing groups: {answer.error_code.name}")
        for listed in answer.groups:
            found[listed.group_id] = GroupListing(listed.group_id, listed.protocol_type, listed.group_state)
    return [found[name] for name in sorted(found)]


def _member(member: DescribedGroupMember, consumer: bool) -> MemberDescription:
    partitions: tuple[TopicPartition, ...] = ()
    data = member.member_assignment
    # While a group is shared out anew its members have no assignment.
    if consumer and len(data) > _VERSION_BYTES:
        assigned = codec(Assignment, 0, False).read(memoryview(data), _VERSION_BYTES, exact=False)
        partitions = tuple(
            TopicPartition(row.topic, number)
            for row in assigned.assigned_partitions
            for number in row.partitions
        )
    return MemberDescription(
        member.member_id, member.client_id, member.client_host, tuple(sorted(partitions))
    )


def _asking(
    cluster: Cluster,
    group: str,
    doing: str,
    ask: Callable[[Connection, Deadline], T],
    deadline: Deadline | None,
) -> T:
    """What ``ask`` returns for the group's coordinator, again while it fails for a passing reason."""
    attempts = cluster.retrying(f"{doing} group {group!r}", deadline)
    while True:
        try:
            connection = coordinator(cluster, CoordinatorType.GROUP, group, attempts.deadline)
            return ask(connection, attempts.deadline)
        except KafkaError as e:
            attempts.failed(e)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return {name: tuple(numbers) for name, numbers in topics.items()}


def _fetch_request(
    group: str, wanted: Mapping[str, tuple[int, ...]] | None, version: int, stable: bool
) -> OffsetFetchRequest:
    stable = stable and version >= _STABLE_VERSION
    if version >= _GROUPS_VERSION:
        groups = None if wanted is None else tuple(OffsetFetchRequestTopics(*row) for row in wanted.items())
        return OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, groups),), require_stable=stable)
    topics = None if wanted is None else tuple(OffsetFetchRequestTopic(*row) for row in wanted.items())
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)


def _all_partitions(cluster: Cluster, deadline: Deadline) -> list[TopicPartition]:
    """Every partition there is, for coordinators that do not tell of which a group has offsets."""
    topics = cluster.metadata(None, deadline=deadline).topics
    return [TopicPartition(topic.name, number) for topic in topics.values() for number in topic.partitions]


def _taken(answer: Any, version: int, group: str, peer: str) -> dict[TopicPartition, CommittedOffset]:
    one = next((g for g in answer.groups if g.group_id == group), None) if answer.groups else answer
    if one is None:
        raise InvalidRequest(f"{peer}: the answer to OffsetFetch leaves out group {group!r}")
    if one.error_code != ErrorCode.NONE:
        raise error_for(one.error_code, f"{peer}: offsets of group {group!r}: {one.error_code.name}")
    found = {}
    for topic in one.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if version < _ALL_VERSION and part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # so it says that there is no offset
            if part.error_code != ErrorCode.NONE:
                text = f"{peer}: offset of group {group!r} for {tp}: {part.error_code.name}"
                raise error_for(part.error_code, text)
            if part.committed_offset >= 0:
                found[tp] = CommittedOffset(
                    part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                )
    return found


def _commit_request(group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, offset in offsets.items():
        topics[tp.topic].append(
            OffsetCommitRequestPartition(tp.partition, offset, committed_metadata=metadata)
        )
    return OffsetCommitRequest(
        group_id=group,
        topics=tuple(OffsetCommitRequestTopic(name, tuple(parts)) for name, parts in topics.items()),
    )


def _failures(answer: Any, asked: Mapping[TopicPartition, int], peer: str) -> dict[TopicPartition, ErrorCode]:
    """The error of each partition that has not been stored."""
    codes = {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }
    missing = sorted(str(tp) for tp in asked if tp not in codes)
    if missing:
        raise InvalidRequest(f"{peer}: the answer to OffsetCommit leaves out {', '.join(missing)}")
    return {tp: codes[tp] for tp in asked if codes[tp] != ErrorCode.NONE}


def _reason(code: ErrorCode) -> str:
    if code in _HAS_MEMBERS:
        return "the group has members, and only they may commit for it: stop them, or use another group"
    return "no such topic or partition" if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code.name
