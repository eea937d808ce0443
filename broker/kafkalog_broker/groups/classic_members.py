"""Classic members of groups of the newer protocol, and groups that change from one to the other. Pure.

A classic member's generation is its epoch. Heartbeat tells it to join again, JoinGroup reconciles it, and
SyncGroup returns its assignment. Source: KIP-848; Kafka's ``GroupMetadataManager``, ``ConsumerGroup`` and
``ClassicGroup``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import (
    CONSUMER,
    JoinAnswer,
    JoinRequest,
    Protocols,
    SyncAnswer,
    SyncRequest,
)
from kafkalog_broker.groups.consumer_group import (
    ClassicMembership,
    ConsumerGroup,
    ConsumerGroupSettings,
    MemberProgress,
    MemberState,
    MemberSubscription,
    TopicSnapshot,
    advanced,
    check_member,
    entered,
    free_for,
    renamed,
    static_member,
    subscribed,
    unknown,
    without,
)
from kafkalog_broker.groups.group_records import StoredGroup, StoredMember
from kafkalog_broker.groups.server_assignors import EMPTY, TargetAssignment
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, ServerError
from pyspark_kafkalog.protocol import consumer_protocol
from pyspark_kafkalog.types import TopicPartition


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    topics: TopicSnapshot,
    settings: ConsumerGroupSettings,
    now_ms: int,
) -> tuple[ConsumerGroup, JoinAnswer]:
    """The next state and the answer, at once: others need not join. Raises `ServerError`."""
    member_id = request.member_id or request.new_id
    if request.protocol_type != CONSUMER or not _supports(group, member_id, request.protocols):
        raise _inconsistent(f"group {group.group_id!r} has members that know none of these protocols")
    if not request.member_id and request.instance_id is None and request.names_first:
        return group, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    subscription = _subscription(request.protocols)
    if request.instance_id is not None:
        same = static_member(group, request.instance_id, member_id)
        if same is not None and same != member_id:
            if request.member_id:
                check_member(group, member_id, request.instance_id)
            group = renamed(group, same, member_id)
        elif same is None and request.member_id:
            raise unknown(group, member_id)
    group = entered(group, member_id, settings)
    group = subscribed(
        group,
        member_id,
        MemberSubscription(
            request.instance_id,
            subscription.rack_id,
            request.client_id,
            request.client_host,
            tuple(sorted(set(subscription.topics))),
            "",
            request.rebalance_timeout_ms,
            None,
            ClassicMembership(request.session_timeout_ms, request.protocols),
        ),
    )
    owned = _with_ids(consumer_protocol.flat(subscription.owned_partitions), topics)
    group = advanced(group, member_id, owned, topics, settings, now_ms)
    group = _due(group, member_id, now_ms)
    answer = JoinAnswer(
        ErrorCode.NONE, member_id, group.progress[member_id].epoch, CONSUMER, request.protocols[0][0]
    )
    return group, answer


def sync(
    group: ConsumerGroup, request: SyncRequest, topics: TopicSnapshot, now_ms: int
) -> tuple[ConsumerGroup, SyncAnswer]:
    """The next state and the member's assignment. Raises `ServerError`."""
    member_id = request.member_id
    classic = _classic(group, member_id, request.instance_id)
    progress = group.progress[member_id]
    _check_generation(progress, member_id, request.generation)
    protocol = classic.protocols[0][0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
        raise _inconsistent(f"member {member_id} has protocol {protocol!r}, not {request.protocol!r}")
    if group.epoch > progress.epoch and progress.state is not MemberState.UNREVOKED:
        raise ServerError(ErrorCode.REBALANCE_IN_PROGRESS, f"member {member_id} has to join again")
    revocations = dict(group.revocations)
    if progress.state is not MemberState.UNREVOKED:
        revocations.pop(member_id, None)
    group = _heard_of(replace(group, revocations=revocations), member_id, classic, now_ms)
    assignment = consumer_protocol.encode_assignment(_with_names(progress.assigned, topics))
    return group, SyncAnswer(ErrorCode.NONE, request.protocol_type, request.protocol, assignment)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> tuple[ConsumerGroup, ErrorCode]:
    """The next state, and NONE or REBALANCE_IN_PROGRESS: it must join again. Raises `ServerError`."""
    classic = _classic(group, member_id, instance_id)
    progress = group.progress[member_id]
    _check_generation(progress, member_id, generation)
    group = _heard_of(group, member_id, classic, now_ms)
    waits = progress.state is MemberState.UNRELEASED and not free_for(group, member_id, progress.assigned)
    stays = progress.state is MemberState.STABLE or waits
    if progress.epoch >= group.epoch and stays:
        return group, ErrorCode.NONE
    if member_id not in group.revocations:
        group = _due(group, member_id, now_ms)
    return group, ErrorCode.REBALANCE_IN_PROGRESS


def leave(
    group: ConsumerGroup, identities: Iterable[tuple[str, str | None]]
) -> tuple[ConsumerGroup, list[ErrorCode]]:
    """The next state, and a code per identity; members of the newer protocol can be named too, as by an
    administrator. An empty member id stands for the instance's member.
    """
    gone, codes = set(), []
    for member_id, instance_id in identities:
        try:
            if not member_id and instance_id is not None:
                found = static_member(group, instance_id, "")
                if found is None:
                    raise unknown(group, "")
                gone.add(found)
            else:
                check_member(group, member_id, instance_id)
                gone.add(member_id)
            codes.append(ErrorCode.NONE)
        except ServerError as e:
            codes.append(e.code)
    return (without(group, gone) if gone else group), codes


def upgraded(name: str, classic: ClassicGroup, topics: TopicSnapshot, now_ms: int) -> ConsumerGroup:
    """The group with the same members, as classic members of the newer protocol. Raises `InvalidRequest`: it
    is not one of consumers, or what its assignor stores with the assignments would be lost.
    """
    if classic.protocol_type != CONSUMER:
        raise InvalidRequest(f"its protocol type is {classic.protocol_type!r}")
    members, progress, sessions = {}, {}, {}
    for member_id, member in classic.members.items():
        if consumer_protocol.assignment_user_data(member.assignment):
            raise InvalidRequest(f"the assignment of member {member_id} has user data, which would be lost")
        subscription = _subscription(member.protocols)
        assigned = _with_ids(consumer_protocol.decode_assignment(member.assignment), topics)
        session_ms, rebalance_ms = int(member.session_seconds * 1000), int(member.rebalance_seconds * 1000)
        members[member_id] = MemberSubscription(
            member.instance_id, subscription.rack_id, member.client_id, member.client_host,
            tuple(sorted(set(subscription.topics))), "", rebalance_ms, None,
            ClassicMembership(session_ms, member.protocols),
        )  # fmt: skip
        progress[member_id] = MemberProgress(
            classic.generation, classic.generation, MemberState.STABLE, assigned, EMPTY
        )
        sessions[member_id] = now_ms + session_ms
    return ConsumerGroup(
        name,
        epoch=classic.generation,
        members=members,
        target_epoch=classic.generation,
        target={member_id: each.assigned for member_id, each in progress.items()},
        progress=progress,
        sessions=sessions,
    )


def turns_classic(before: ConsumerGroup, after: ConsumerGroup, settings: ConsumerGroupSettings) -> bool:
    """Whether the last member of the newer protocol has left, and classic ones are there."""
    return (
        settings.downgrades
        and any(before.members[gone].classic is None for gone in before.members.keys() - after.members.keys())
        and bool(after.members)
        and all(member.classic is not None for member in after.members.values())
    )


def downgraded(
    group: ConsumerGroup, topics: TopicSnapshot, time_ms: int
) -> tuple[StoredGroup, dict[str, Protocols]]:
    """A group of classic members only as a classic one, and what each member supports, for
    `ClassicGroup.take_over`.
    """
    classic = {m: member.classic for m, member in group.members.items() if member.classic is not None}
    shared = set.intersection(*({name for name, _ in each.protocols} for each in classic.values()))
    protocol = next((name for each in classic.values() for name, _ in each.protocols if name in shared), None)
    members = tuple(
        StoredMember(
            member_id,
            group.members[member_id].instance_id,
            group.members[member_id].client_id,
            group.members[member_id].client_host,
            group.members[member_id].rebalance_timeout_ms,
            each.session_timeout_ms,
            dict(each.protocols).get(protocol or "", b""),
            consumer_protocol.encode_assignment(_with_names(group.progress[member_id].assigned, topics)),
        )
        for member_id, each in classic.items()
    )
    stored = StoredGroup(CONSUMER, group.epoch, protocol, next(iter(classic), None), time_ms, members)
    return stored, {member_id: each.protocols for member_id, each in classic.items()}


def _supports(group: ConsumerGroup, member_id: str, protocols: Protocols) -> bool:
    others = [
        {name for name, _ in member.classic.protocols}
        for other, member in group.members.items()
        if member.classic is not None and other != member_id
    ]
    return any(all(name in known for known in others) for name, _ in protocols)


def _subscription(protocols: Protocols) -> consumer_protocol.Subscription:
    try:
        return consumer_protocol.decode_subscription(protocols[0][1])
    except InvalidRequest as e:
        raise _inconsistent(f"metadata of protocol {protocols[0][0]!r} is not a subscription: {e}") from None


def _classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ClassicMembership:
    check_member(group, member_id, instance_id)
    classic = group.members[member_id].classic
    if classic is None:
        raise unknown(group, member_id)
    return classic


def _check_generation(progress: MemberProgress, member_id: str, generation: int) -> None:
    if generation != progress.epoch:
        raise ServerError(
            ErrorCode.ILLEGAL_GENERATION, f"member {member_id} is at {progress.epoch}, not at {generation}"
        )


def _heard_of(group: ConsumerGroup, member_id: str, classic: ClassicMembership, now_ms: int) -> ConsumerGroup:
    return replace(group, sessions={**group.sessions, member_id: now_ms + classic.session_timeout_ms})


def _due(group: ConsumerGroup, member_id: str, now_ms: int) -> ConsumerGroup:
    """The member must send what it was told to, a join or a sync, within its rebalance timeout."""
    due = now_ms + group.members[member_id].rebalance_timeout_ms
    return replace(group, revocations={**group.revocations, member_id: due})


def _with_ids(partitions: Iterable[TopicPartition], topics: TopicSnapshot) -> TargetAssignment:
    return frozenset((topics[p.topic].topic_id, p.partition) for p in partitions if p.topic in topics)


def _with_names(assignment: TargetAssignment, topics: TopicSnapshot) -> list[TopicPartition]:
    names: dict[UUID, str] = {topic.topic_id: name for name, topic in topics.items()}
    return sorted(TopicPartition(names[topic], number) for topic, number in assignment if topic in names)


def _inconsistent(message: str) -> ServerError:
    return ServerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
