"""Each event in each state of a classic group, as Apache Kafka answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import (
    GroupOutcome,
    JoinAnswer,
    JoinRequest,
    Moment,
    Phase,
    SyncAnswer,
    SyncRequest,
    subscribed_topics,
)
from pyspark_kafkalog.errors import ErrorCode

SESSION, REBALANCE = 10.0, 20.0
RANGE = (("range", b"r"),)
NONE, AGAIN, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID


class Driver:
    """A group, what it had stored, and its answers by the name of who asked."""

    def __init__(self, *, delay_ms: int = 0, max_size: int = 100) -> None:
        self.group = ClassicGroup(max_size=max_size, initial_delay_ms=delay_ms)
        self.stored: list[Any] = []
        self.answers: list[tuple[str, Any]] = []
        self.seconds = 100.0
        self.waiters: dict[str, Callable[[Any], object]] = {}

    @property
    def now(self) -> Moment:
        return Moment(self.seconds, int(self.seconds * 1000))

    def take(self, step: GroupOutcome) -> None:
        if step.stored is not None:
            self.stored.append(step.stored)
            self.group.in_log = True
        for waiter, answer in step.answers:
            waiter(answer)

    def waiter(self, name: str) -> Callable[[Any], object]:
        def answered(answer: Any) -> None:
            self.answers.append((name, answer))

        self.waiters[name] = answered
        return answered

    def join(
        self,
        member_id: str = "",
        *,
        new_id: str = "new",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        names_first: bool = False,
        can_skip: bool = False,
        rebalance: float = REBALANCE,
    ) -> JoinAnswer | None:
        """The answer if there is one at once; it is of ``member_id`` or ``new_id``."""
        name = member_id or new_id
        before = len(self.answers)
        request = JoinRequest(
            member_id, new_id, instance, "client", "/host", int(SESSION * 1000), int(rebalance * 1000),
            protocol_type, protocols, names_first, can_skip,
        )  # fmt: skip
        self.take(self.group.join(request, self.waiter(name), self.now))
        return self.own(name, before)

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        *,
        instance: str | None = None,
        assignments: dict[str, bytes] | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> SyncAnswer | None:
        before = len(self.answers)
        request = SyncRequest(
            member_id,
            instance,
            self.group.generation if generation is None else generation,
            protocol_type,
            protocol,
            assignments or {},
        )
        self.take(self.group.sync(request, self.waiter(member_id), self.now))
        return self.own(member_id, before)

    def own(self, name: str, before: int) -> Any:
        return next((answer for who, answer in self.answers[before:] if who == name), None)

    def leave(self, *identities: tuple[str, str | None]) -> list[ErrorCode]:
        codes, step = self.group.leave(identities, self.now)
        self.take(step)
        return codes

    def advance(self, seconds: float) -> None:
        """Time passes, each deadline on its own."""
        end = self.seconds + seconds
        while self.group.deadline() <= end:
            self.seconds = max(self.seconds, self.group.deadline())
            self.take(self.group.tick(self.now))
        self.seconds = end

    def told(self, name: str) -> list[ErrorCode]:
        """The codes of all answers to ``name``."""
        return [answer.error for who, answer in self.answers if who == name]

    @property
    def member_ids(self) -> list[str]:
        return list(self.group.members)


def test_an_id_that_is_asked_for_stores_a_new_group_but_no_generation_without_assignments() -> None:
    driver = Driver()
    driver.join(new_id="a", names_first=True)
    assert [(stored.generation, stored.members) for stored in driver.stored] == [(0, ())]
    rebalancing = Driver()
    rebalancing.join(new_id="a")
    rebalancing.join(new_id="b", names_first=True)
    assert rebalancing.stored == []


def in_phase(phase: Phase) -> Driver:
    """A group of a, its leader, and b in ``phase``; in P both are still to join again, in C to sync."""
    driver = Driver()
    driver.join(new_id="a")
    if phase is Phase.EMPTY:
        driver.leave(("a", None))
        driver.answers.clear()
        driver.stored.clear()
        return driver
    driver.join(new_id="b")
    driver.join("a")
    if phase is not Phase.COMPLETING:
        driver.sync("b")
        driver.sync("a", assignments={"a": b"for a", "b": b"for b"})
    if phase is Phase.PREPARING:
        driver.join(new_id="c")
        driver.leave(("c", None))
    assert driver.group.phase is phase
    driver.answers.clear()
    driver.stored.clear()
    return driver


@pytest.fixture(params=list(Phase), ids=lambda phase: phase.value)
def phase(request: pytest.FixtureRequest) -> Phase:
    found: Phase = request.param
    return found


def by_phase(phase: Phase, *codes: ErrorCode) -> ErrorCode:
    """That of Empty, Preparing, Completing, Stable."""
    return codes[list(Phase).index(phase)]


def test_heartbeats(phase: Phase) -> None:
    driver = in_phase(phase)
    generation = driver.group.generation
    beat = driver.group.heartbeat
    assert beat("a", None, generation, driver.now) == by_phase(phase, UNKNOWN, AGAIN, NONE, NONE)
    assert beat("x", None, generation, driver.now) == UNKNOWN
    wrong = by_phase(phase, UNKNOWN, *[ErrorCode.ILLEGAL_GENERATION] * 3)
    assert beat("a", None, generation - 1, driver.now) == wrong


def test_commits(phase: Phase) -> None:
    driver = in_phase(phase)
    generation, now = driver.group.generation, driver.now
    check = driver.group.check_commit
    illegal = by_phase(phase, UNKNOWN, *[ErrorCode.ILLEGAL_GENERATION] * 3)
    assert check("", None, -1, now) == by_phase(phase, NONE, UNKNOWN, UNKNOWN, UNKNOWN)
    assert check("a", None, generation, now) == by_phase(phase, UNKNOWN, NONE, AGAIN, NONE)
    assert check("a", None, generation + 1, now) == illegal
    assert check("x", None, generation, now) == UNKNOWN
    assert check("", None, -1, now, in_transaction=True) == NONE
    member = by_phase(phase, UNKNOWN, NONE, NONE, NONE)
    assert check("a", None, generation, now, in_transaction=True) == member
    assert check("a", None, generation + 1, now, in_transaction=True) == illegal


def test_syncs(phase: Phase) -> None:
    driver = in_phase(phase)
    answer = driver.sync("b")
    if phase is Phase.COMPLETING:
        assert answer is None
        own = driver.sync("a", assignments={"b": b"for b", "gone": b"x"})
        assert own == SyncAnswer(NONE, "consumer", "range", b"")
        assert ("b", SyncAnswer(NONE, "consumer", "range", b"for b")) in driver.answers
        assert driver.group.phase is Phase.STABLE
        assert [m.assignment for m in driver.stored[-1].members] == [b"", b"for b"]
    elif phase is Phase.STABLE:
        assert answer == SyncAnswer(NONE, "consumer", "range", b"for b")
        assert driver.stored == []
    else:
        assert answer == SyncAnswer(by_phase(phase, UNKNOWN, AGAIN))
    if phase is not Phase.EMPTY:
        assert driver.sync("b", 17) == SyncAnswer(ErrorCode.ILLEGAL_GENERATION)
        wrong = SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        assert driver.sync("b", protocol="sticky") == wrong
        assert driver.sync("b", protocol_type="connect") == wrong
    assert driver.sync("x") == SyncAnswer(UNKNOWN)


def test_a_new_member_gets_an_id_first_and_is_pending(phase: Phase) -> None:
    driver = in_phase(phase)
    answer = driver.join(new_id="n", names_first=True)
    assert answer == JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "n")
    assert driver.group.phase is phase
    assert driver.stored == []  # the group is known, or has no assignments yet
    assert "n" not in driver.member_ids
    assert driver.sync("n") == SyncAnswer(UNKNOWN)
    joined = driver.join("n", names_first=True)
    if phase is Phase.EMPTY:
        assert joined is not None
        assert (joined.error, joined.leader, len(joined.members)) == (NONE, "n", 1)
    else:
        assert joined is None
        assert driver.group.phase is Phase.PREPARING
        assert driver.member_ids == ["a", "b", "n"]


def test_a_member_joins_again(phase: Phase) -> None:
    if phase is Phase.EMPTY:
        assert in_phase(phase).join("a") == JoinAnswer(UNKNOWN, "a")
        return
    for who, changed, moves in (
        ("b", False, (None, Phase.COMPLETING, Phase.STABLE)),
        ("a", False, (None, Phase.COMPLETING, Phase.PREPARING)),
        ("b", True, (None, Phase.PREPARING, Phase.PREPARING)),
    ):
        driver = in_phase(phase)
        generation = driver.group.generation
        answer = driver.join(who, protocols=(("range", b"other"),) if changed else RANGE)
        after = moves[list(Phase).index(phase) - 1]
        if after in (None, Phase.PREPARING):
            assert answer is None
            assert driver.group.phase is Phase.PREPARING
        else:
            assert answer is not None
            assert (answer.generation, answer.protocol, answer.leader) == (generation, "range", "a")
            assert [m.member_id for m in answer.members] == (["a", "b"] if who == "a" else [])
            assert driver.group.phase is after


def test_a_join_of_an_unknown_id_or_of_what_the_others_do_not_have_is_refused(phase: Phase) -> None:
    driver = in_phase(phase)
    inconsistent = JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert driver.join("x") == JoinAnswer(UNKNOWN, "x")
    assert driver.join("x", instance="i") == JoinAnswer(UNKNOWN, "x")
    assert driver.join(protocols=()) == inconsistent
    if phase is not Phase.EMPTY:
        assert driver.join(protocol_type="connect") == inconsistent
        assert driver.join(protocols=(("sticky", b""),)) == inconsistent
        # The protocol is looked at before the id.
        assert driver.join("x", protocol_type="connect") == inconsistent._replace(member_id="x")
    assert driver.group.phase is phase


def test_leaving(phase: Phase) -> None:
    driver = in_phase(phase)
    if phase is Phase.EMPTY:
        assert driver.leave(("a", None)) == [UNKNOWN]
        return
    assert driver.leave(("x", None), ("", "no-instance"), ("b", None)) == [UNKNOWN, UNKNOWN, NONE]
    assert driver.member_ids == ["a"]
    assert driver.group.phase is Phase.PREPARING
    generation = driver.group.generation
    assert driver.leave(("a", None)) == [NONE]
    assert (driver.group.phase, driver.group.generation) == (Phase.EMPTY, generation + 1)
    stored = driver.stored[-1]
    assert (stored.generation, stored.protocol, stored.leader, stored.members) == (
        generation + 1,
        None,
        None,
        (),
    )
    assert stored.protocol_type == "consumer"


def test_parked_syncs_are_sent_to_join_again_by_a_rebalance() -> None:
    driver = in_phase(Phase.COMPLETING)
    assert driver.sync("b") is None
    driver.join(new_id="c")
    assert driver.told("b") == [AGAIN]


def test_a_parked_join_of_a_connection_that_was_given_up_is_answered_too() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join(new_id="c")
    driver.join("b")
    assert driver.told("b") == []
    driver.join("b")
    assert driver.told("b") == [AGAIN]
    driver.join("a")
    assert driver.told("b") == [AGAIN, NONE]


def test_who_leaves_while_it_waits_is_answered() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join(new_id="c")
    driver.leave(("c", None))
    assert driver.told("c") == [UNKNOWN]
    waiting = in_phase(Phase.COMPLETING)
    waiting.sync("b")
    waiting.leave(("b", None))
    assert waiting.told("b") == [UNKNOWN]


def test_a_rebalance_ends_when_all_have_joined_and_nobody_is_pending() -> None:
    driver = in_phase(Phase.STABLE)
    generation = driver.group.generation
    driver.join(new_id="c", names_first=True)
    driver.join("a")
    driver.join("b")
    assert driver.told("a") == []
    driver.join("c")
    assert driver.told("a") == driver.told("b") == [NONE]
    assert (driver.group.phase, driver.group.generation) == (Phase.COMPLETING, generation + 1)


@pytest.mark.parametrize("how", ["leaves", "is given up"])
def test_a_pending_member_that_does_not_come_is_not_waited_for(how: str) -> None:
    driver = in_phase(Phase.STABLE)
    driver.join(new_id="c", names_first=True)
    driver.join("a")
    driver.join("b")
    if how == "leaves":
        assert driver.leave(("c", None)) == [NONE]
    else:
        driver.advance(SESSION)
    assert driver.told("a") == driver.told("b") == [NONE]
    assert driver.join("c") == JoinAnswer(UNKNOWN, "c")


def test_a_rebalance_lasts_for_the_longest_of_its_members_times_at_most() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join(new_id="c", rebalance=5)
    driver.advance(SESSION - 1)
    assert driver.group.heartbeat("a", None, driver.group.generation, driver.now) is AGAIN
    assert driver.group.heartbeat("b", None, driver.group.generation, driver.now) is AGAIN
    driver.advance(SESSION - 1)
    assert driver.group.heartbeat("b", None, driver.group.generation, driver.now) is AGAIN
    assert driver.told("c") == []
    driver.advance(REBALANCE - 2 * SESSION + 2)
    (answer,) = [answer for who, answer in driver.answers if who == "c"]
    assert (answer.error, answer.leader, len(answer.members)) == (NONE, "c", 1)
    assert driver.member_ids == ["c"]


def test_who_waits_does_not_expire_but_a_new_member_does_after_five_minutes() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join("a")
    for _ in range(2):
        driver.advance(SESSION - 1)
        driver.group.heartbeat("b", None, driver.group.generation, driver.now)
    assert driver.member_ids == ["a", "b"]
    slow = Driver()
    slow.join(new_id="a", rebalance=1000)
    slow.sync("a")
    slow.join(new_id="b", rebalance=1000)
    for _ in range(34):
        slow.advance(9)
        slow.group.heartbeat("a", None, slow.group.generation, slow.now)
    assert (slow.member_ids, slow.told("b")) == (["a"], [UNKNOWN])


def test_a_commit_beside_a_parked_join_does_not_begin_a_session() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join("a")
    assert driver.group.check_commit("a", None, driver.group.generation, driver.now) is NONE
    assert driver.group.heartbeat("a", None, driver.group.generation, driver.now) is AGAIN
    for _ in range(2):
        driver.advance(SESSION - 1)
        driver.group.heartbeat("b", None, driver.group.generation, driver.now)
    assert driver.member_ids == ["a", "b"]


def test_who_does_not_sync_is_removed_after_the_rebalance_timeout() -> None:
    driver = in_phase(Phase.COMPLETING)
    driver.sync("a", assignments={})
    assert driver.group.phase is Phase.STABLE
    for _ in range(2):
        driver.advance(SESSION - 0.5)
        for name in ("a", "b"):
            driver.group.heartbeat(name, None, driver.group.generation, driver.now)
    driver.advance(1)
    assert (driver.member_ids, driver.group.phase) == (["a"], Phase.PREPARING)


def test_an_empty_group_waits_for_more_members_and_once_more_if_some_came() -> None:
    driver = Driver(delay_ms=3000)
    driver.join(new_id="a")
    driver.advance(2.5)
    driver.join(new_id="b")
    driver.advance(0.6)
    assert driver.told("a") == []
    driver.advance(3)
    assert driver.told("a") == driver.told("b") == [NONE]
    assert driver.group.generation == 1


def test_the_first_wait_is_no_longer_than_the_rebalance_timeout() -> None:
    driver = Driver(delay_ms=3000)
    driver.join(new_id="m0", rebalance=7)
    for n in range(1, 4):
        driver.advance(2)
        driver.join(new_id=f"m{n}")
    driver.advance(0.9)
    assert driver.told("m0") == []
    driver.advance(0.2)
    assert driver.told("m0") == [NONE]


def test_an_absent_leader_is_replaced_by_one_who_joined() -> None:
    driver = Driver()
    driver.join(new_id="a", instance="i")
    driver.join(new_id="b")
    driver.join("a", instance="i")
    driver.sync("b")
    driver.sync("a", instance="i")
    assert driver.group.leader == "a"
    driver.answers.clear()
    driver.join("b", protocols=(("range", b"changed"),))
    for _ in range(3):
        driver.group.heartbeat("a", "i", driver.group.generation, driver.now)
        driver.advance(REBALANCE / 3 + 0.1)
    (answer,) = [answer for who, answer in driver.answers if who == "b"]
    assert answer.leader == "b"
    assert [(m.member_id, m.instance_id) for m in answer.members] == [("a", "i"), ("b", None)]


def test_the_protocol_is_the_one_with_most_votes_among_those_that_all_have() -> None:
    driver = Driver(delay_ms=1000)
    for name, protocols in (("a", "xyz"), ("b", "zyw"), ("c", "yz")):
        driver.join(new_id=name, protocols=tuple((p, f"{name}-{p}".encode()) for p in protocols))
    driver.advance(5)
    (answer,) = [answer for who, answer in driver.answers if who == "a"]
    assert answer.protocol == "y"
    assert [m.metadata for m in answer.members] == [b"a-y", b"b-y", b"c-y"]


def test_a_full_group_refuses_further_members() -> None:
    driver = Driver(max_size=2)
    driver.join(new_id="a")
    driver.join(new_id="b")
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.join("a")
    assert driver.join(new_id="c") == JoinAnswer(full, "")
    driver.sync("b")
    driver.sync("a")
    assert driver.join(new_id="c", instance="i") == JoinAnswer(full, "")
    assert driver.member_ids == ["a", "b"]


def test_a_new_member_goes_with_its_connection_and_a_known_one_stays() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join(new_id="c")
    driver.join(new_id="d", names_first=True)
    driver.join("a")
    driver.join("b")
    driver.take(driver.group.abandon("c", driver.waiters["c"], driver.now))
    assert driver.member_ids == ["a", "b"]
    driver.join("d")
    driver.answers.clear()
    driver.sync("a")
    driver.join("b", protocols=(("range", b"x"),))
    driver.take(driver.group.abandon("b", driver.waiters["b"], driver.now))
    assert "b" in driver.member_ids


class TestStaticMembers:
    @pytest.fixture
    def driver(self) -> Driver:
        """A stable group of a, its leader, with instance i, and b with instance j."""
        driver = Driver()
        driver.join(new_id="a", instance="i")
        driver.join(new_id="b", instance="j")
        driver.join("a", instance="i")
        driver.sync("b", instance="j")
        driver.sync("a", instance="i", assignments={"a": b"for a", "b": b"for b"})
        driver.answers.clear()
        driver.stored.clear()
        return driver

    def test_it_comes_back_without_a_rebalance(self, driver: Driver) -> None:
        generation = driver.group.generation
        answer = driver.join(new_id="b2", instance="j", names_first=True)
        assert answer == JoinAnswer(NONE, "b2", generation, "consumer", "range", "a")
        assert driver.group.phase is Phase.STABLE
        (stored,) = driver.stored
        assert [(m.member_id, m.assignment) for m in stored.members] == [("a", b"for a"), ("b2", b"for b")]
        assert driver.sync("b2", instance="j") == SyncAnswer(NONE, "consumer", "range", b"for b")
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert driver.join("b", instance="j") == JoinAnswer(fenced, "b")
        assert driver.sync("b", instance="j") == SyncAnswer(fenced)
        assert driver.group.heartbeat("b", "j", generation, driver.now) == fenced
        assert driver.group.check_commit("b", "j", generation, driver.now) == fenced
        assert driver.leave(("b", "j")) == [fenced]
        assert driver.group.heartbeat("b", None, generation, driver.now) == UNKNOWN
        assert driver.group.heartbeat("b2", None, generation, driver.now) == NONE

    @pytest.mark.parametrize("can_skip", [True, False])
    def test_a_leader_that_comes_back_does_not_assign(self, driver: Driver, can_skip: bool) -> None:
        answer = driver.join(new_id="a2", instance="i", can_skip=can_skip)
        assert answer is not None
        if can_skip:
            assert (answer.leader, answer.skip_assignment) == ("a2", True)
            assert [m.member_id for m in answer.members] == ["a2", "b"]
        else:
            assert (answer.leader, answer.skip_assignment, answer.members) == ("a", False, ())
        assert driver.group.leader == "a2"

    def test_with_other_protocols_it_causes_a_rebalance(self, driver: Driver) -> None:
        both = (("range", b"r"), ("sticky", b"s"))
        driver.join("a", instance="i", protocols=(("sticky", b"s"), ("range", b"r")))
        driver.join("b", instance="j", protocols=both)
        driver.sync("b", instance="j")
        driver.sync("a", instance="i")
        assert driver.group.protocol == "range"  # one vote each: the first by name
        driver.answers.clear()
        assert driver.join(new_id="b2", instance="j", protocols=(both[1], both[0])) is None
        assert driver.group.phase is Phase.PREPARING
        driver.join("a", instance="i", protocols=(("sticky", b"s"), ("range", b"r")))
        assert driver.group.protocol == "sticky"
        assert driver.told("b2") == [NONE]

    def test_in_a_rebalance_it_takes_the_place_of_the_old_one_that_waits(self, driver: Driver) -> None:
        driver.join("b", instance="j", protocols=(("range", b"x"),))
        assert driver.join(new_id="b2", instance="j") is None
        assert driver.told("b") == [ErrorCode.FENCED_INSTANCE_ID]
        driver.join("a", instance="i")
        assert driver.told("b2") == [NONE]

    def test_it_stays_in_a_rebalance_that_it_misses(self, driver: Driver) -> None:
        driver.join("a", instance="i")
        for _ in range(3):
            driver.group.heartbeat("b", "j", driver.group.generation, driver.now)
            driver.advance(REBALANCE / 3 + 0.1)
        assert driver.told("a") == [NONE]
        assert driver.member_ids == ["a", "b"]

    def test_it_is_removed_by_its_instance_alone(self, driver: Driver) -> None:
        assert driver.leave(("", "j")) == [NONE]
        assert driver.member_ids == ["a"]
        assert driver.group.phase is Phase.PREPARING


def test_assignments_that_are_not_stored_are_not_given() -> None:
    driver = in_phase(Phase.COMPLETING)
    driver.sync("b")
    request = SyncRequest("a", None, driver.group.generation, None, None, {"b": b"for b"})
    step = driver.group.sync(request, driver.waiter("a"), driver.now)
    step = driver.group.not_stored(step, ErrorCode.NOT_COORDINATOR, driver.now)
    driver.take(step)
    assert driver.told("a") == driver.told("b") == [ErrorCode.NOT_COORDINATOR]
    assert driver.group.phase is Phase.PREPARING
    assert step.stored is None


def test_a_group_is_restored_from_its_record_with_new_sessions() -> None:
    driver = in_phase(Phase.STABLE)
    driver.join("b", protocols=(("range", b"x"),))
    driver.join("a")
    driver.sync("b")
    driver.sync("a", assignments={"a": b"1", "b": b"2"})
    later = Driver()
    later.seconds = 5000.0
    later.group.restore(driver.stored[-1], later.now)
    assert later.group.phase is Phase.STABLE
    assert (later.group.generation, later.group.protocol, later.group.leader) == (
        driver.group.generation,
        "range",
        "a",
    )
    assert later.sync("b") == SyncAnswer(NONE, "consumer", "range", b"2")
    later.advance(SESSION - 1)
    assert later.member_ids == ["a", "b"]
    assert later.join("b", protocols=(("range", b"x"),)) is not None  # what it says has not changed
    later.advance(1)
    assert later.member_ids == ["b"]


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (bytes.fromhex("0000 00000002 0001 61 0002 6262 ffffffff"), ("a", "bb")),
        (bytes.fromhex("0003 00000001 0001 61 ffffffff 00000000 00000001 0000"), ("a",)),
        # What cannot be read may be any topic.
        (b"", None),
        (b"\x00", None),
        (bytes.fromhex("0000 7fffffff 0001"), None),
    ],
)
def test_topics_are_read_from_a_consumers_metadata(metadata: bytes, topics: tuple[str, ...] | None) -> None:
    assert subscribed_topics(metadata) == topics
