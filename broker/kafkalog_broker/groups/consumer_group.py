"""State machine of one group of the new protocol (KIP-848). Pure.

A state is immutable: each function takes one, an event and the time, and returns the next.
`group_records` stores the difference. A refused event raises `KafkaError`.
Source: KIP-848; Kafka's ``GroupMetadataManager`` and ``CurrentAssignmentBuilder``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec

from kafkalog_broker.groups.server_assignors import ASSIGNORS, EMPTY, Subscriber, TargetAssignment
from kafkalog_broker.groups.topic_patterns import compiled
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest

JOINING = 0
"""Epoch of a joining member."""

LEAVING = -1
"""Epoch of a leaving member."""

BACK_SOON = -2
"""Epoch of a static member that will be back; it keeps its assignment until its session ends."""

MEMBER_EPOCHS_SINCE = 9
"""First version of OffsetCommit and OffsetFetch with a member epoch."""

_CLIENT_NAMES_ITSELF_SINCE = 1

_BY_MEMBER = ("members", "target", "progress", "sessions")


class MemberState(IntEnum):
    """Progress towards the target assignment; Kafka's numbers."""

    STABLE = 0
    UNREVOKED = 1
    """Has not yet revoked everything it must give up."""
    UNRELEASED = 2
    """Waits for partitions that another member still owns."""


class ClassicMembership(msgspec.Struct, frozen=True):
    """What a classic member sent with its join. ``protocols``: names and metadata, preferred first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberSubscription(msgspec.Struct, frozen=True):
    """``pattern``: a regular expression over topic names, or "". ``classic``: None for the newer protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    names: tuple[str, ...]
    pattern: str
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMembership | None = None


class MemberProgress(msgspec.Struct, frozen=True):
    """``assigned`` may be used; ``revoking`` must still be given up."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: TargetAssignment
    revoking: TargetAssignment


class SubscribedTopic(msgspec.Struct, frozen=True):
    topic_id: UUID
    partition_count: int


class MatchedTopics(msgspec.Struct, frozen=True):
    """``names`` matched the pattern at ``time_ms``, in ms since the epoch."""

    names: tuple[str, ...]
    time_ms: int


TopicSnapshot = Mapping[str, StoredTopic]
"""All topics by name. A changed topic set is a new object, so identity tells whether anything changed."""


class ConsumerGroupSettings(msgspec.Struct, frozen=True):
    """Broker settings; ``assignors`` are keys of `ASSIGNORS`, the first is the default."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignors: tuple[str, ...] = ("uniform", "range")
    max_size: int = 2**31 - 1
    regex_refresh_interval_ms: int = 600_000
    upgrades: bool = True
    downgrades: bool = True


class Client(msgspec.Struct, frozen=True):
    """``may_describe`` says whether a topic's name may be shown to it."""

    client_id: str
    host: str
    version: int
    may_describe: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The mappings are by member id, except ``topics`` and ``patterns``. If ``target_epoch`` is below
    ``epoch``, the next heartbeat computes a new target. Fields with ``compare=False`` are not stored:
    deadlines (ms of any clock), the last topic snapshots used, and when patterns were last matched (ms since
    the epoch).
    """

    group_id: str
    epoch: int = 0
    topics: Mapping[str, SubscribedTopic] = field(default_factory=dict)
    members: Mapping[str, MemberSubscription] = field(default_factory=dict)
    target_epoch: int = 0
    target: Mapping[str, TargetAssignment] = field(default_factory=dict)
    progress: Mapping[str, MemberProgress] = field(default_factory=dict)
    patterns: Mapping[str, MatchedTopics] = field(default_factory=dict)
    sessions: Mapping[str, int] = field(default_factory=dict, compare=False)
    revocations: Mapping[str, int] = field(default_factory=dict, compare=False)
    seen: TopicSnapshot | None = field(default=None, compare=False)
    matched: TopicSnapshot | None = field(default=None, compare=False)
    matched_ms: int = field(default=0, compare=False)

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(_is_reconciled(p, self.target_epoch) for p in self.progress.values()):
            return "Stable"
        return "Reconciling"

    @property
    def deadline(self) -> int | None:
        """When `expired` is next due; None without members."""
        times = [*self.sessions.values(), *self.revocations.values()]
        return min(times) if times else None

    def assignor(self, settings: ConsumerGroupSettings) -> str:
        votes = Counter(m.assignor for m in self.members.values() if m.assignor in settings.assignors)
        return max(settings.assignors, key=lambda name: votes[name])

    def subscribed_names(self, member_id: str) -> frozenset[str]:
        member = self.members[member_id]
        matched = self.patterns.get(member.pattern)
        return frozenset(member.names if matched is None else (*member.names, *matched.names))

    def all_subscribed(self) -> frozenset[str]:
        # Most members have the same subscription.
        unlike = {(m.names, m.pattern): member_id for member_id, m in self.members.items()}
        return frozenset[str]().union(*map(self.subscribed_names, unlike.values()))

    def unmatched(
        self, topics: TopicSnapshot, settings: ConsumerGroupSettings, time_ms: int
    ) -> frozenset[str]:
        """The patterns to match: all of them if one is new, or topics changed, or ACLs may have changed."""
        wanted = {m.pattern for m in self.members.values() if m.pattern}
        is_due = not 0 <= time_ms - self.matched_ms < settings.regex_refresh_interval_ms
        is_new = topics is not self.matched or not wanted <= self.patterns.keys()
        return frozenset(wanted if is_due or is_new else ())


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerGroupSettings
) -> None:
    ids = {"group": request.group_id, "instance": request.instance_id, "rack": request.rack_id}
    for what, value in ids.items():
        if value == "":
            raise _invalid(f"the {what} id must not be empty")
    if not request.member_id and (request.member_epoch != JOINING or version >= _CLIENT_NAMES_ITSELF_SINCE):
        raise _invalid("the member id must not be empty")
    if request.member_epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("a joining member must give its rebalance timeout")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("a joining member must give an empty list of partitions")
        # An empty list is allowed: a client that matches patterns itself may not know any topic yet.
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("a joining member must say what it subscribes to")
    elif request.member_epoch < BACK_SOON:
        raise _invalid(f"member epoch {request.member_epoch}; the least is {BACK_SOON}")
    elif request.member_epoch == BACK_SOON and request.instance_id is None:
        raise _invalid(f"member epoch {BACK_SOON} is for static members, which give their instance id")
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ServerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.server_assignor!r}; there are {', '.join(settings.assignors)}",
        )
    if request.subscribed_topic_regex:
        compiled(request.subscribed_topic_regex)


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    client: Client,
    topics: TopicSnapshot,
    settings: ConsumerGroupSettings,
    now_ms: int,
) -> tuple[ConsumerGroup, TargetAssignment | None]:
    """The next state, and the assignment if it must be sent. Call `check_request` first. Raises
    `ServerError`.
    """
    member_id = request.member_id
    if request.member_epoch < 0:
        return _left(group, request), None
    owned = _owned(request)
    if request.member_epoch == JOINING:
        group = _joined(group, request, client, settings)
    else:
        check_member(group, member_id, request.instance_id)
        _check_epoch(group.progress[member_id], request.member_epoch, owned, member_id)
        group = subscribed(group, member_id, _updated(group.members[member_id], request, client))
    before = group.progress[member_id]
    group = advanced(group, member_id, owned, topics, settings, now_ms)
    after = group.progress[member_id]
    send = _is_full(request) or before.assigned != after.assigned
    return group, after.assigned if send else None


def advanced(
    group: ConsumerGroup,
    member_id: str,
    owned: TargetAssignment | None,
    topics: TopicSnapshot,
    settings: ConsumerGroupSettings,
    now_ms: int,
) -> ConsumerGroup:
    """The state after a member was heard of: a new target if that is behind, and the member's next step."""
    group = _looked_at(group, topics)
    if group.epoch > group.target_epoch:
        group = _retargeted(group, settings)
    group = _reconciled(group, member_id, owned, now_ms)
    due = now_ms + _session_ms(group.members[member_id], settings)
    return replace(group, sessions={**group.sessions, member_id: due})


def _session_ms(member: MemberSubscription, settings: ConsumerGroupSettings) -> int:
    return settings.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms


def expired(group: ConsumerGroup, now_ms: int) -> ConsumerGroup:
    late = {m for times in (group.sessions, group.revocations) for m, due in times.items() if due <= now_ms}
    return without(group, late) if late else group


def resumed(group: ConsumerGroup, settings: ConsumerGroupSettings, now_ms: int) -> ConsumerGroup:
    return replace(
        group,
        sessions={m: now_ms + _session_ms(member, settings) for m, member in group.members.items()},
        revocations={
            m: now_ms + group.members[m].rebalance_timeout_ms
            for m, progress in group.progress.items()
            if progress.state is MemberState.UNREVOKED
        },
    )


def matched_patterns(
    group: ConsumerGroup, found: Mapping[str, frozenset[str]], topics: TopicSnapshot, time_ms: int
) -> ConsumerGroup:
    """Stores the topics matched by patterns still in use; a changed match bumps the epoch."""
    patterns = dict(group.patterns)
    wanted = {m.pattern for m in group.members.values()}
    changed = False
    for pattern, names in found.items():
        old = patterns.get(pattern)
        if pattern in wanted and (old is None or frozenset(old.names) != names):
            changed = changed or bool(names) or old is not None
            patterns[pattern] = MatchedTopics(tuple(sorted(names)), time_ms)
    group = replace(group, patterns=patterns, matched=topics, matched_ms=time_ms)
    return replace(group, epoch=group.epoch + 1, seen=None) if changed else group


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, version: int | None) -> None:
    """Checks that a member may commit; ``version`` is that of OffsetCommit, None in a transaction. Raises
    `ServerError`: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION below 9, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION in a
    transaction).
    """
    if epoch < 0 and (not group.members or (version is None and not member_id)):
        return  # an administrator, or a producer without group metadata
    if member_id not in group.members:
        raise unknown(group, member_id)
    classic = group.members[member_id].classic is not None
    if version is not None and version < MEMBER_EPOCHS_SINCE and not classic:
        raise ServerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"group {group.group_id!r} has the newer protocol; its members commit in version "
            f"{MEMBER_EPOCHS_SINCE} and later",
        )
    old = version is None or classic
    code = ErrorCode.ILLEGAL_GENERATION if old else ErrorCode.STALE_MEMBER_EPOCH
    _check_epoch_is(group, member_id, epoch, code)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Checks that offsets may be read. Raises `ServerError`: UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH."""
    if not member_id and epoch < 0:
        return
    if member_id is None or member_id not in group.members:
        raise unknown(group, member_id or "")
    classic = group.members[member_id].classic is not None
    code = ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH
    _check_epoch_is(group, member_id, epoch, code)


def _check_epoch_is(group: ConsumerGroup, member_id: str, epoch: int, code: ErrorCode) -> None:
    present = group.progress[member_id].epoch
    if epoch != present:
        raise ServerError(code, f"member {member_id} is at epoch {present}, not at {epoch}")


def _joined(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    client: Client,
    settings: ConsumerGroupSettings,
) -> ConsumerGroup:
    member_id = request.member_id
    same = None if request.instance_id is None else static_member(group, request.instance_id, member_id)
    if same is not None and same != member_id:
        if group.progress[same].epoch != BACK_SOON and group.members[same].classic is None:
            raise ServerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"member {same} has the instance id {request.instance_id!r} and has not left",
            )
        group = renamed(group, same, member_id)
    group = entered(group, member_id, settings)
    old = group.members.get(member_id) or MemberSubscription(None, None, "", "", (), "", -1, None)
    return subscribed(group, member_id, _updated(old, request, client))


def entered(group: ConsumerGroup, member_id: str, settings: ConsumerGroupSettings) -> ConsumerGroup:
    """With the progress of a member that is new, or is back. Raises `ServerError`: the group is full."""
    if member_id not in group.members:
        if len(group.members) >= settings.max_size:
            raise ServerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id!r} has {settings.max_size} members"
            )
        now = MemberProgress(0, 0, MemberState.STABLE, EMPTY, EMPTY)
    elif group.progress[member_id].epoch == BACK_SOON:
        now = msgspec.structs.replace(group.progress[member_id], epoch=0, previous_epoch=0)
    else:
        return group
    return replace(group, progress={**group.progress, member_id: now})


def _left(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
    member_id = request.member_id
    check_member(group, member_id, request.instance_id)
    if request.member_epoch == LEAVING:
        return without(group, {member_id})
    # A member that left reads no more, so nothing is left to revoke.
    away = msgspec.structs.replace(
        group.progress[member_id],
        epoch=BACK_SOON,
        previous_epoch=group.progress[member_id].epoch,
        state=MemberState.STABLE,
        revoking=EMPTY,
    )
    revocations = {m: due for m, due in group.revocations.items() if m != member_id}
    return replace(group, progress={**group.progress, member_id: away}, revocations=revocations)


def check_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    if instance_id is not None:
        present = static_member(group, instance_id, member_id)
        if present is None:
            raise unknown(group, member_id)
        if present != member_id:
            raise ServerError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"member {present} has the instance id {instance_id!r} now, not {member_id}",
            )
    elif member_id not in group.members:
        raise unknown(group, member_id)


def _check_epoch(
    progress: MemberProgress, epoch: int, owned: TargetAssignment | None, member_id: str
) -> None:
    if epoch == progress.epoch:
        return
    # The answer with the new epoch may have been lost; a member that owns no more than it may continues.
    lost_answer = epoch == progress.previous_epoch and owned is not None and owned <= progress.assigned
    if epoch > progress.epoch or not lost_answer:
        raise ServerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member_id} is at epoch {progress.epoch}, not at {epoch}; it has to join again",
        )


def static_member(group: ConsumerGroup, instance_id: str, likely: str) -> str | None:
    known = group.members.get(likely)
    if known is not None and known.instance_id == instance_id:
        return likely
    return next((m for m, s in group.members.items() if s.instance_id == instance_id), None)


def _updated(
    old: MemberSubscription, request: ConsumerGroupHeartbeatRequest, client: Client
) -> MemberSubscription:
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    new = MemberSubscription(
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        names=old.names if names is None else tuple(sorted(set(names))),
        pattern=old.pattern if pattern is None else pattern,
        rebalance_timeout_ms=(
            old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        assignor=old.assignor if request.server_assignor is None else request.server_assignor,
    )
    return old if new == old else new


def subscribed(group: ConsumerGroup, member_id: str, new: MemberSubscription) -> ConsumerGroup:
    old = group.members.get(member_id)
    if old is new:
        return group
    group = replace(group, members={**group.members, member_id: new})
    if old is not None and (old.names, old.pattern) == (new.names, new.pattern):
        return group
    group = _without_unused_patterns(group)
    return replace(group, epoch=group.epoch + 1, seen=None)


def _looked_at(group: ConsumerGroup, topics: TopicSnapshot) -> ConsumerGroup:
    if topics is group.seen:
        return group
    found = {
        name: SubscribedTopic(topics[name].topic_id, len(topics[name].partitions))
        for name in sorted(group.all_subscribed())
        if name in topics
    }
    if found == group.topics:
        return replace(group, seen=topics)
    # If the epoch is already ahead of the target, the next target covers this change as well.
    rise = group.epoch == group.target_epoch
    return replace(group, topics=found, seen=topics, epoch=group.epoch + rise)


def _retargeted(group: ConsumerGroup, settings: ConsumerGroupSettings) -> ConsumerGroup:
    subscribers = {}
    ids: dict[object, frozenset[UUID]] = {}
    for member_id, member in group.members.items():
        subscription = member.names, member.pattern
        if subscription not in ids:
            names = group.topics.keys() & group.subscribed_names(member_id)
            ids[subscription] = frozenset(group.topics[name].topic_id for name in names)
        subscribers[member_id] = Subscriber(
            member.instance_id, ids[subscription], group.target.get(member_id, EMPTY)
        )
    counts = {topic.topic_id: topic.partition_count for topic in group.topics.values()}
    target = ASSIGNORS[group.assignor(settings)](subscribers, counts)
    return replace(group, target=target, target_epoch=group.epoch)


def _reconciled(
    group: ConsumerGroup, member_id: str, owned: TargetAssignment | None, now_ms: int
) -> ConsumerGroup:
    before = group.progress[member_id]
    if _is_reconciled(before, group.target_epoch):
        return group
    after = _next_progress(group, member_id, before, owned)
    if after == before:
        return group
    revocations = dict(group.revocations)
    if after.state is MemberState.UNREVOKED:
        revocations[member_id] = now_ms + group.members[member_id].rebalance_timeout_ms
    else:
        revocations.pop(member_id, None)
    return replace(group, progress={**group.progress, member_id: after}, revocations=revocations)


def _next_progress(
    group: ConsumerGroup, member_id: str, now: MemberProgress, owned: TargetAssignment | None
) -> MemberProgress:
    epoch = now.epoch
    if now.state is MemberState.UNREVOKED:
        if owned is None or owned & now.revoking:
            return now
        epoch += 1
    target = group.target.get(member_id, EMPTY)
    keep, revoke = now.assigned & target, now.assigned - target
    if revoke and (owned is None or owned & revoke):
        return _moved(now, epoch, MemberState.UNREVOKED, keep, revoke)
    wanted = target - keep
    free = free_for(group, member_id, keep)
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED
    return _moved(now, group.target_epoch, state, keep | free, EMPTY)


def free_for(group: ConsumerGroup, member_id: str, keep: TargetAssignment) -> TargetAssignment:
    """What a member shall have besides what it keeps, and no other member holds any more."""
    wanted = group.target.get(member_id, EMPTY) - keep
    return wanted.difference(
        *(held for m, p in group.progress.items() if m != member_id for held in (p.assigned, p.revoking))
    )


def _moved(
    now: MemberProgress, epoch: int, state: MemberState, keep: TargetAssignment, revoke: TargetAssignment
) -> MemberProgress:
    previous = now.previous_epoch if epoch == now.epoch else now.epoch
    return MemberProgress(epoch, previous, state, keep, revoke)


def _is_reconciled(progress: MemberProgress, target_epoch: int) -> bool:
    return progress.state is MemberState.STABLE and progress.epoch == target_epoch


def without(group: ConsumerGroup, gone: Iterable[str]) -> ConsumerGroup:
    gone = frozenset(gone)
    left: dict[str, Any] = {
        name: {m: value for m, value in getattr(group, name).items() if m not in gone}
        for name in (*_BY_MEMBER, "revocations")
    }
    group = _without_unused_patterns(replace(group, epoch=group.epoch + 1, **left))
    subscribed = group.all_subscribed()
    return replace(group, topics={n: topic for n, topic in group.topics.items() if n in subscribed})


def _without_unused_patterns(group: ConsumerGroup) -> ConsumerGroup:
    if not group.patterns:
        return group
    used = {m.pattern for m in group.members.values()}
    return replace(group, patterns={p: matched for p, matched in group.patterns.items() if p in used})


def renamed(group: ConsumerGroup, old_id: str, new_id: str) -> ConsumerGroup:
    renamed: dict[str, Any] = {
        name: {new_id if m == old_id else m: value for m, value in getattr(group, name).items()}
        for name in _BY_MEMBER
    }
    return replace(group, **renamed)


def _owned(request: ConsumerGroupHeartbeatRequest) -> TargetAssignment | None:
    if request.topic_partitions is None:
        return None
    return frozenset((t.topic_id, p) for t in request.topic_partitions for p in t.partitions)


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.member_epoch == JOINING or (
        subscribes and request.rebalance_timeout_ms != -1 and request.topic_partitions is not None
    )


def unknown(group: ConsumerGroup, member_id: str) -> ServerError:
    return ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id!r} has no member {member_id!r}")


def _invalid(message: str) -> ServerError:
    return ServerError(ErrorCode.INVALID_REQUEST, message)
