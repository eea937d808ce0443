"""Whatever crashes, races and is tried again: a lineage tiles each partition's offsets.

Drivers load, discard and rewind over one store in memory. Any of them may die before or after any operation
of the store, and two may run at once, interleaved at those operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_kafkalog.errors import IncompleteLoad, LostRace
from pyspark_kafkalog.ledger.commit import LOAD_MODES, Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.store import Store
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08, TopicPartition
from tests.support.examples import examples
from tests.support.ledger.memory_store import Crash, MemoryStore, WatchedStore, crashing
from tests.support.ledger.plans import facts, plan_of, read
from tests.support.ledger.turns import Gate, take_turns

FIRST_START = 3
"""Where the first load begins, if the log is that long; a later partition begins at its earliest, 0."""


@dataclass(frozen=True)
class Driver:
    """What one driver does, and where it dies, if it does."""

    action: str
    crash_at: int | None
    crash_after: bool
    failing_task: int | None
    speculative: bool
    target: int


DRIVERS = st.builds(
    Driver,
    action=st.sampled_from(["load"] * 6 + ["discard", "rewind"]),
    crash_at=st.one_of(st.none(), st.none(), st.integers(0, 40)),
    crash_after=st.booleans(),
    failing_task=st.one_of(st.none(), st.none(), st.integers(0, 5)),
    speculative=st.booleans(),
    target=st.integers(0, 6),
)


class LedgerModel(RuleBasedStateMachine):
    """``acknowledged`` is what drivers were told of their commits, ``plans`` each plan as first seen."""

    @initialize(latest=st.lists(st.integers(FIRST_START, 9), min_size=1, max_size=3), brokers=st.booleans())
    def begin(self, latest: list[int], brokers: bool) -> None:
        self.store = MemoryStore()
        self.brokers = brokers
        self.cluster = {self.key(i): facts(0, end) for i, end in enumerate(latest)}
        self.acknowledged: dict[int, Commit] = {}
        self.plans: dict[str, bytes] = {}
        self.runs = 0
        protocol = PROTOCOL_07 if brokers else PROTOCOL_08
        Ledger(self.store, "flights").identify("cluster-a", {"subscribe": "clicks"}, protocol=protocol)

    def key(self, number: int) -> TopicPartition:
        """The next partition; those of 0.7 are numbered by each of two brokers."""
        return TopicPartition("clicks", *(divmod(number, 2) if self.brokers else (number,)))

    @rule(growth=st.lists(st.integers(0, 6), min_size=1, max_size=4), moved=st.booleans())
    def grow(self, growth: list[int], moved: bool) -> None:
        for (key, known), more in zip(list(self.cluster.items()), growth, strict=False):
            leader = known.leader + moved
            self.cluster[key] = facts(known.earliest, known.latest + more, leader=leader)

    @rule(latest=st.integers(0, 5))
    def add_partition(self, latest: int) -> None:
        if len(self.cluster) < 5:
            self.cluster[self.key(len(self.cluster))] = facts(0, latest)

    @rule(driver=DRIVERS)
    def one_driver(self, driver: Driver) -> None:
        self.drive(driver, self.store)

    @rule(
        first=DRIVERS,
        second=DRIVERS,
        stretches=st.lists(st.integers(1, 9), min_size=2, max_size=12),
    )
    def two_drivers(self, first: Driver, second: Driver, stretches: list[int]) -> None:
        def job(driver: Driver) -> Callable[[Gate], None]:
            return lambda gate: self.drive(driver, WatchedStore(self.store, before=lambda *_: gate()))

        failed: list[BaseException] = []

        def told(job: Callable[[Gate], None]) -> Callable[[Gate], None]:
            def run(gate: Gate) -> None:
                try:
                    job(gate)
                except BaseException as e:
                    failed.append(e)

            return run

        schedule = [at % 2 for at, length in enumerate(stretches) for _ in range(length)]
        take_turns([told(job(first)), told(job(second))], schedule)
        if failed:
            raise failed[0]

    @rule(newest=st.sampled_from([b"", b"{}", b'{"newest": 1}\n', b'{"newest": 99}\n']))
    def lose_the_hints(self, newest: bytes) -> None:
        for name in [name for name in self.store.records if "/offsets/" in name]:
            self.store.remove(name)
        self.store.replace("flights/HEAD.json", newest)
        commits = len(self.store.names("flights/commits"))
        if newest.endswith(b"99}\n") or (b"1" in newest and not commits):
            self.store.remove("flights/HEAD.json")

    def drive(self, driver: Driver, store: Store) -> None:
        """One driver, from its start to its end, its death, or the word that another one won."""
        self.runs += 1
        run = f"run-{self.runs}"
        ledger = Ledger(crashing(store, driver.crash_at, after=driver.crash_after), "flights")
        try:
            commit = self.act(driver, ledger, run)
        except (Crash, LostRace, IncompleteLoad):
            return
        if commit is not None:
            assert commit.run == run
            assert commit.number not in self.acknowledged, "two were told that they made one commit"
            self.acknowledged[commit.number] = commit

    def act(self, driver: Driver, ledger: Ledger, run: str) -> Commit | None:
        if driver.action == "rewind":
            target = driver.target
            newest = ledger.head_number()
            return ledger.rewind(min(target, newest), run) if newest else None
        plan = ledger.pending()
        if driver.action == "discard":
            return ledger.discard(plan, run) if plan else None
        if plan is None:
            starts = {key: min(FIRST_START, known.latest) for key, known in self.cluster.items()}
            # The time is that of the run, so that a plan which another one wrote over is not the same.
            head = ledger.head()
            kept = ledger.stored(head)
            if kept is not None:
                starts = {}
            plan = plan_of(self.cluster, head, stored=kept or {}, first_starts=starts, created=run)
            if not plan.ranges:
                if kept is None:
                    ledger.keep_start(plan.starts.values())
                return None
            plan = ledger.write_plan(plan)
        for index, planned in enumerate(plan.ranges):
            if index == driver.failing_task:
                continue
            ledger.leave_receipt(read(plan, planned, run=run), index)
            if driver.speculative:
                ledger.leave_receipt(read(plan, planned, run=run, attempt=1), index)
        if driver.failing_task in range(len(plan.ranges)):
            with pytest.raises(IncompleteLoad):
                ledger.check_read(plan, run)
        else:
            ledger.check_read(plan, run)
        commit = ledger.commit(plan, mode="job", run=run)
        assert ledger.commit(plan, mode="job", run=run) == commit, "the same run may commit again"
        return commit

    @rule()
    def nobody_disturbs_a_driver(self) -> None:
        """It replays what is pending, then loads all that is left: no crash leaves anything that stops it."""
        driver = Driver("load", None, crash_after=False, failing_task=None, speculative=False, target=0)
        for _ in range(2):
            self.drive(driver, self.store)
        ledger = Ledger(self.store, "flights")
        head = ledger.head()
        at = {key: one.next for key, one in head.stored.items()} if head else {}
        assert ledger.pending() is None
        for key, known in self.cluster.items():
            assert at.get(key, min(FIRST_START, known.latest)) == known.latest

    @invariant()
    def the_ledger_is_sound(self) -> None:
        assert Ledger(self.store, "flights").verify() == []

    @invariant()
    def committed_ranges_tile_each_partition(self) -> None:
        ledger = Ledger(self.store, "flights")
        at: dict[TopicPartition, int] = {}
        for commit in ledger.lineage():
            stored = {key: one.next for key, one in commit.stored.items()}
            if commit.mode == "rewind" and commit.parent == 0:
                at = stored
            if commit.mode in LOAD_MODES:
                for planned in ledger.plan(commit.number).ranges:
                    key = planned.key
                    if key in at or planned.start > FIRST_START:
                        assert planned.start == at[key]
                    at[key] = planned.end
                    receipt = f"receipts/{commit.number:08d}/{key.topic}/{key.number}"
                    assert f"flights/{receipt}/{planned.start}-{planned.end}.json" in self.store.records
            assert {key: at.get(key, end) for key, end in stored.items()} == stored
            at = stored
        assert all(end <= self.cluster[key].latest for key, end in at.items())

    @invariant()
    def what_was_acknowledged_stays(self) -> None:
        ledger = Ledger(self.store, "flights")
        for number, commit in self.acknowledged.items():
            assert ledger.commit_of(number) == commit

    @invariant()
    def a_plan_never_changes(self) -> None:
        for name, data in self.store.records.items():
            if "/plans/" in name:
                assert self.plans.setdefault(name, data) == data

    @invariant()
    def commits_have_no_gap(self) -> None:
        ledger = Ledger(self.store, "flights")
        assert [commit.number for commit in ledger.history()] == list(
            range(1, len(self.store.names("flights/commits")) + 1)
        )


TestLedgerModel = LedgerModel.TestCase
TestLedgerModel.settings = examples(60, stateful_step_count=20, phases=[Phase.generate, Phase.shrink])
