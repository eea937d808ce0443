"""State machine of one classic group. Pure: the time is a parameter.

Each event returns a `GroupOutcome`: the record to store, and the answers to send after that. The tables, and
the sources, are in `classic_rules`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kafkalog_broker.groups.classic_rules import (
    ANSWERS,
    REJOINS,
    Asked,
    ClassicMember,
    GroupOutcome,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Moment,
    Move,
    Phase,
    Protocols,
    Rejoin,
    SyncAnswer,
    SyncRequest,
    Waiter,
    subscribed_topics,
)
from kafkalog_broker.groups.group_records import StoredGroup
from pyspark_kafkalog.errors import ErrorCode


class ClassicGroup:
    """*Not thread-safe: guarded by the lock of its shard.* ``members`` is in join order."""

    def __init__(self, *, max_size: int, initial_delay_ms: int) -> None:
        self._max_size = max_size
        self._initial_seconds = initial_delay_ms / 1000
        self.phase = Phase.EMPTY
        self.since_ms = -1
        """Start of ``phase``, in ms since the epoch."""
        self.in_log = False
        """Whether the log has a record of this group."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self._instances: dict[str, ClassicMember] = {}
        self._pending: dict[str, float] = {}  # ids handed out but not joined yet, with their deadlines
        self._unsynced: set[str] = set()
        self._joining_count = 0
        self._ends = math.inf  # deadline of PREPARING, or of the missing syncs after it
        self._initial_left = -1.0  # seconds the first rebalance may still be delayed; negative: not delayed
        self._newcomers = False

    # Checks.

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            static = self._instances.get(instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if static.member_id == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> ErrorCode:
        """Renews the member's session; REBALANCE_IN_PROGRESS makes the client join again."""
        code = self._check(Asked.HEARTBEAT, member_id, instance_id, generation)
        if code is ErrorCode.NONE or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.members[member_id].heard_of(now.monotonic)
        return code

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: Moment,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Whether the member may commit; a negative generation means a commit from outside the group."""
        if generation < 0 and not member_id and instance_id is None and in_transaction:
            return ErrorCode.NONE
        if generation < 0 and (self.phase is Phase.EMPTY or (not member_id and instance_id is None)):
            return ANSWERS[Asked.COMMIT_FROM_OUTSIDE][self.phase]
        asked = Asked.COMMIT_IN_TRANSACTION if in_transaction else Asked.COMMIT
        code = self._check(asked, member_id, instance_id, generation)
        if code is ErrorCode.NONE and not in_transaction:
            self.members[member_id].heard_of(now.monotonic)
        return code

    def check_deletion(self) -> ErrorCode:
        return ANSWERS[Asked.DELETION][self.phase]

    def _check(self, asked: Asked, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        code = self.check_member(member_id, instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ANSWERS[asked][self.phase]

    # Joining and leaving.

    def join(self, request: JoinRequest, waiter: Waiter, now: Moment) -> GroupOutcome:
        step = GroupOutcome()
        code = self._join(request, waiter, now, step)
        if code is not ErrorCode.NONE:
            step.answers.append((waiter, JoinAnswer(code, request.member_id)))
        return step

    def _join(self, request: JoinRequest, waiter: Waiter, now: Moment, step: GroupOutcome) -> ErrorCode:
        if not self._supports(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        member_id, instance_id = request.member_id, request.instance_id
        if not member_id and instance_id in self._instances:
            self._replace(self._instances[instance_id], request, waiter, now, step)
            return ErrorCode.NONE
        if member_id and member_id not in self._pending:
            code = self.check_member(member_id, instance_id)
            if code is not ErrorCode.NONE:
                return code
            if not self._has_room(self.members[member_id]):
                self._remove((self.members[member_id],), now, step)
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            self._rejoin(self.members[member_id], request, waiter, now, step)
            return ErrorCode.NONE
        if member_id and instance_id is not None:  # only dynamic members are handed an id first
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not self._has_room(None):
            if self._pending.pop(member_id, None) is not None:
                self._complete_if_all_joined(now, step)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not member_id and instance_id is None and request.names_first:
            self._pending[request.new_id] = now.monotonic + request.session_timeout_ms / 1000
            step.sooner = True
            if self.phase is Phase.EMPTY and not self.in_log:
                self._store(now, step)
            step.answers.append((waiter, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.new_id)))
            return ErrorCode.NONE
        self._pending.pop(member_id, None)
        self._add(ClassicMember.of(member_id or request.new_id, request), request, waiter, now, step)
        return ErrorCode.NONE

    def leave(
        self, identities: Iterable[tuple[str, str | None]], now: Moment
    ) -> tuple[list[ErrorCode], GroupOutcome]:
        """Returns one code per identity. An empty member id stands for the instance's current member."""
        step, codes, gone = GroupOutcome(), [], []
        for member_id, instance_id in identities:
            code = ErrorCode.NONE
            if not member_id and instance_id is not None:
                static = self._instances.get(instance_id)
                if static is None:
                    code = ErrorCode.UNKNOWN_MEMBER_ID
                else:
                    gone.append(static)
            elif instance_id is None and self._pending.pop(member_id, None) is not None:
                pass
            else:
                code = self.check_member(member_id, instance_id)
                if code is ErrorCode.NONE:
                    gone.append(self.members[member_id])
            codes.append(code)
        self._remove(dict.fromkeys(gone), now, step)
        return codes, step

    def abandon(self, member_id: str, waiter: Waiter, now: Moment) -> GroupOutcome:
        """The connection of a waiting join closed; removes a member that cannot know its id yet."""
        step = GroupOutcome()
        member = self.members.get(member_id)
        if member is not None and member.joining is waiter and not member.knows_its_id:
            self._remove((member,), now, step)
        return step

    def _supports(self, request: JoinRequest) -> bool:
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        if request.protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(name in common for name, _ in request.protocols)

    def _has_room(self, member: ClassicMember | None) -> bool:
        if self.phase is Phase.EMPTY:
            return True
        if self.phase is Phase.PREPARING:
            return (member is not None and member.joining is not None) or (
                self._joining_count < self._max_size
            )
        return member is not None or len(self.members) < self._max_size

    def _add(
        self, member: ClassicMember, request: JoinRequest, waiter: Waiter, now: Moment, step: GroupOutcome
    ) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member
        if self.leader is None:
            self.leader = member.member_id
        self._newcomers = self.phase is Phase.PREPARING
        self._park(member, waiter, now, step)
        self._rebalance(now, step)

    def _rejoin(
        self, member: ClassicMember, request: JoinRequest, waiter: Waiter, now: Moment, step: GroupOutcome
    ) -> None:
        who = Rejoin.LEADER if member.member_id == self.leader else Rejoin.FOLLOWER
        if member.protocols != request.protocols:
            who = Rejoin.CHANGED
        move = REJOINS[self.phase][who]
        if move is Move.TELL:
            member.heard_of(now.monotonic)
            step.sooner = True
            step.answers.append((waiter, self._generation_for(member)))
            return
        member.take(request)
        self._park(member, waiter, now, step)
        self._rebalance(now, step)

    def _replace(
        self, old: ClassicMember, request: JoinRequest, waiter: Waiter, now: Moment, step: GroupOutcome
    ) -> None:
        """A static member restarted without its id: it gets a new one, and the old one is fenced."""
        led = old.member_id == self.leader
        self._answer_parked(old, ErrorCode.FENCED_INSTANCE_ID, step)
        member = ClassicMember.of(request.new_id, request)
        member.assignment, member.is_new, member.knows_its_id = old.assignment, old.is_new, False
        self.members = {m.member_id: m for m in (member if m is old else m for m in self.members.values())}
        self._instances[member.instance_id or ""] = member
        if old.member_id in self._unsynced:
            self._unsynced.discard(old.member_id)
            self._unsynced.add(member.member_id)
        if led:
            self.leader = member.member_id
        if self.phase is not Phase.STABLE or self._chosen_protocol() != self.protocol:
            self._park(member, waiter, now, step)
            self._rebalance(now, step)
            return
        member.knows_its_id, member.is_new = True, False
        member.renew(now.monotonic)
        self._store(now, step)
        step.sooner = True
        answer = self._generation_for(member, skip_assignment=led and request.can_skip)
        if led and not request.can_skip:  # as leader it would assign; it must not, so name the old id
            answer = answer._replace(leader=old.member_id, members=())
        step.answers.append((waiter, answer))

    def _remove(self, gone: Iterable[ClassicMember], now: Moment, step: GroupOutcome) -> None:
        any_gone = False
        for member in gone:
            any_gone = True
            self._drop(member, step)
        if any_gone:
            self._rebalance(now, step)
        else:
            self._complete_if_all_joined(now, step)

    def _drop(self, member: ClassicMember, step: GroupOutcome) -> None:
        self._answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, step)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    # The rebalance.

    def _park(self, member: ClassicMember, waiter: Waiter, now: Moment, step: GroupOutcome) -> None:
        """Makes the join wait; an earlier join of the same member is from a closed connection."""
        self._answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
        member.joining = waiter
        self._joining_count += 1
        member.wait_on(now.monotonic)
        step.sooner = True

    def _answer_parked(self, member: ClassicMember, code: ErrorCode, step: GroupOutcome) -> None:
        if member.joining is not None:
            step.answers.append((member.joining, JoinAnswer(code, member.member_id)))
            member.joining = None
            self._joining_count -= 1
        if member.syncing is not None:
            step.answers.append((member.syncing, SyncAnswer(code)))
            member.syncing = None

    def _rebalance(self, now: Moment, step: GroupOutcome) -> None:
        if self.phase is not Phase.PREPARING:
            for member in self.members.values():
                if member.syncing is not None:
                    self._answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
                    member.renew(now.monotonic)
            self._unsynced.clear()
            self._initial_left = -1.0
            seconds = self._rebalance_seconds()
            if self.phase is Phase.EMPTY and self._initial_seconds > 0:
                self._newcomers = False
                self._initial_left = seconds
                seconds = self._put_off()
            self._enter(Phase.PREPARING, now)
            self._ends = now.monotonic + seconds
            step.sooner = True
        self._complete_if_all_joined(now, step)

    def _put_off(self) -> float:
        seconds = min(self._initial_seconds, self._initial_left)
        self._initial_left -= seconds
        return seconds

    def _complete_if_all_joined(self, now: Moment, step: GroupOutcome) -> None:
        if (
            self.phase is Phase.PREPARING
            and self._initial_left < 0
            and not self._pending
            and self._joining_count == len(self.members)
        ):
            self._complete(now, step)

    def _complete(self, now: Moment, step: GroupOutcome) -> None:
        for member in [m for m in self.members.values() if m.joining is None and m.instance_id is None]:
            self._drop(member, step)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            self._ends = now.monotonic + self._rebalance_seconds()
            step.sooner = True
            return
        self._initial_left = -1.0
        self.generation += 1
        if not joined:
            self.protocol = self.leader = None
            self._enter(Phase.EMPTY, now)
            self._store(now, step)
            return
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self.protocol = self._chosen_protocol()
        self._enter(Phase.COMPLETING, now)
        self._ends = now.monotonic + self._rebalance_seconds()
        self._unsynced = set(self.members)
        for member in self.members.values():
            member.assignment = b""
            member.is_new, member.knows_its_id = False, True
            member.renew(now.monotonic)
        for member in joined:
            if member.joining is not None:
                step.answers.append((member.joining, self._generation_for(member)))
                member.joining = None
        self._joining_count = 0
        step.sooner = True

    def _generation_for(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinAnswer:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol))
                for m in self.members.values()
            )
        return JoinAnswer(
            ErrorCode.NONE, member.member_id, self.generation, self.protocol_type, self.protocol,
            self.leader or "", skip_assignment, members,
        )  # fmt: skip

    def sync(self, request: SyncRequest, waiter: Waiter, now: Moment) -> GroupOutcome:
        step = GroupOutcome()
        code = self._check_sync(request)
        if code is not ErrorCode.NONE:
            step.answers.append((waiter, SyncAnswer(code)))
            return step
        member = self.members[request.member_id]
        self._unsynced.discard(member.member_id)
        self._answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
        if not self._unsynced:
            self._ends = math.inf
        if self.phase is Phase.STABLE:
            self._give_assignment(member, waiter, now, step)
            return step
        member.syncing = waiter
        member.wait_on(now.monotonic)
        if member.member_id == self.leader:
            self._enter(Phase.STABLE, now)
            for each in self.members.values():
                each.assignment = request.assignments.get(each.member_id, b"")
                if each.syncing is not None:
                    self._give_assignment(each, each.syncing, now, step)
                    each.syncing = None
            self._store(now, step)
        return step

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        code = self.check_member(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return code
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (
            None,
            self.protocol,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ANSWERS[Asked.SYNC][self.phase]

    def _give_assignment(
        self, member: ClassicMember, waiter: Waiter, now: Moment, step: GroupOutcome
    ) -> None:
        member.renew(now.monotonic)
        step.sooner = True
        answer = SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)
        step.answers.append((waiter, answer))

    def _common_protocols(self) -> set[str]:
        return set.intersection(*({name for name, _ in m.protocols} for m in self.members.values()))

    def _chosen_protocol(self) -> str | None:
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
            if common
        )
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def _rebalance_seconds(self) -> float:
        return max((member.rebalance_seconds for member in self.members.values()), default=0.0)

    def _enter(self, phase: Phase, now: Moment) -> None:
        self.phase, self.since_ms = phase, now.time_ms
        if phase is not Phase.COMPLETING and phase is not Phase.STABLE:
            self._ends = math.inf

    # Timers.

    def deadline(self) -> float:
        return min(
            self._ends,
            min(self._pending.values(), default=math.inf),
            min((member.expires for member in self.members.values()), default=math.inf),
        )

    def tick(self, now: Moment) -> GroupOutcome:
        step, at = GroupOutcome(sooner=True), now.monotonic
        self._pending = {member_id: due for member_id, due in self._pending.items() if due > at}
        self._remove([m for m in self.members.values() if m.expires <= at], now, step)
        if self._ends <= at:
            if self.phase is Phase.PREPARING:
                if self._newcomers and self._initial_left > 0:
                    self._newcomers = False
                    self._ends = at + self._put_off()
                else:
                    self._complete(now, step)
            elif self._unsynced:
                self._remove([self.members[member_id] for member_id in sorted(self._unsynced)], now, step)
        return step

    # Storage.

    def _store(self, now: Moment, step: GroupOutcome) -> None:
        step.stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=now.time_ms,
            members=tuple(member.stored(self.protocol) for member in self.members.values()),
        )

    def not_stored(self, step: GroupOutcome, code: ErrorCode, now: Moment) -> GroupOutcome:
        """Turns successes into errors, because the log refused a record; then rebalances again."""
        failed = GroupOutcome(sooner=True)
        for waiter, answer in step.answers:
            given = answer
            if answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                given = JoinAnswer(code, "") if isinstance(answer, JoinAnswer) else SyncAnswer(code)
            failed.answers.append((waiter, given))
        if any(isinstance(answer, SyncAnswer) for _, answer in step.answers):
            self._rebalance(now, failed)
        return failed

    def restore(self, stored: StoredGroup, now: Moment) -> None:
        """Loads the last record; the members keep their assignments and start new sessions."""
        self.in_log = True
        self.generation, self.since_ms = stored.generation, stored.current_state_timestamp
        self.protocol_type = stored.protocol_type or None
        for found in stored.members:
            member = ClassicMember.restored(found, stored.protocol)
            member.renew(now.monotonic)
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._instances[member.instance_id] = member
        if self.members:
            self.phase, self.protocol = Phase.STABLE, stored.protocol
            leader = stored.leader if stored.leader in self.members else None
            self.leader = leader or next(iter(self.members))

    # Queries.

    @property
    def is_void(self) -> bool:
        return not (self.members or self._pending or self.in_log)

    @property
    def is_idle(self) -> bool:
        return self.phase is Phase.EMPTY and not self._pending

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the consumers subscribe to; None if unknown, so possibly any topic."""
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata(self.protocol))
            if found is None:
                return None
            topics.update(found)
        return frozenset(topics)

    def take_over(self, stored: StoredGroup, protocols: Mapping[str, Protocols], now: Moment) -> None:
        """Begin with the stored members of a group of the newer protocol, who all must join again."""
        self.restore(stored, now)
        for member_id, each in protocols.items():
            self.members[member_id].protocols = each
        self._rebalance(now, GroupOutcome())

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[tuple[Waiter, Any]]:
        """Answers all waiting clients, by default so that they look up the coordinator again."""
        step = GroupOutcome()
        for member in self.members.values():
            self._answer_parked(member, code, step)
        return step.answers
