"""A round of the loads' fault driver: loads of a growing topic, a fault in each, all from one seed.

Whatever a fault leaves behind, the only remedy is to run the load again, as users do. What
tests/fault/README.md says is asserted after each step; what the output holds, in between and at the end.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import LoadBusy
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import verification
from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files
from tests.support.loads.armed_faults import Fault
from tests.support.loads.growing_topic import GrowingTopic
from tests.support.loads.loaded_table import check_positions, check_table
from tests.support.loads.spark_driver import COMMITTED_FROM, DRIVER_POINTS, DriverDied, SparkDriver
from tests.support.loads.spark_drivers import LOCAL_CLUSTER, Drivers
from tests.support.until import until

NAME = "growing"
MAX_ATTEMPTS = 4
"""Spark's ``spark.task.maxFailures``."""

ORC_FILES = {"format": "orc"}
BY_HOUR = {"partition_by_time": "timestamp", "grain": "hour"}
"""How files are written: what `Load.write_files` is told."""

_LAST_LOADS = 5
_ATTEMPTS_AFTER_A_DEATH = 3
_DIED = "DriverDied"


@dataclass
class LoadRound:
    """*Not thread-safe.* One ledger, one output, one topic. What happens is printed, to be run again."""

    seed: object
    drivers: Drivers
    broker: EmbeddedBroker
    topic: GrowingTopic
    directory: Path
    rng: random.Random = field(init=False)
    ledger: Ledger = field(init=False)
    options: dict[str, str] = field(init=False)
    how: dict[str, str] = field(default_factory=dict)
    """What the writer of files is told."""
    load_count: int = 0
    struck: Counter[str] = field(default_factory=Counter)

    driver_points: ClassVar = tuple(point for point in DRIVER_POINTS if "sql" not in point)
    points_of_a_retry: ClassVar = ("before receipt", "after receipt")
    """Where a task can be killed so that the repeated one finds something of the first."""
    points_for_good: ClassVar = ("row", "before receipt", "after receipt")
    """Where each attempt at a task can be killed."""
    replays_read: ClassVar = True
    """Whether the tasks of a plan that was left read it again, even if all of its rows were written."""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"loads, seed {self.seed}")
        self.directory.mkdir(exist_ok=True)
        self.ledger = Ledger.at(self.offsets, NAME)
        self.options = {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": self.topic.name,
            "kafka.max.partition.fetch.bytes": str(self.rng.choice([4_000, 20_000, 1 << 20])),
            "minPartitions": str(self.rng.choice([1, 5, 8])),
        }
        self.transformed = self.rng.random() < 0.5
        self.note(f"seed {self.seed!r}: {self.options}, transformed={self.transformed}")

    @property
    def offsets(self) -> str:
        """Where ledgers are."""
        return str(self.directory / "offsets")

    @property
    def path(self) -> str:
        """The output."""
        return str(self.directory / "table")

    def run(self, steps: list[str]) -> None:
        """The steps: methods by their names, with spaces."""
        for step in steps:
            getattr(self, step.replace(" ", "_"))()

    # ---- the steps

    def plain(self) -> None:
        """Nothing happens: it must succeed."""
        self._must_succeed("plain")

    def worker_killed(self) -> None:
        """Spark repeats the task; the load does not notice."""
        self._with_fault("row", "kill", rows=self.rng.randrange(1, 600))

    def worker_killed_at_its_receipt(self) -> None:
        """The repeated task finds its own receipt."""
        self._with_fault(self.rng.choice(self.points_of_a_retry), "kill")

    def task_fails_for_good(self) -> None:
        """All attempts at one task are killed: the load fails, its plan stays."""
        point = self.rng.choice(self.points_for_good)
        answer = self._with_fault(
            point, "kill", times=MAX_ATTEMPTS, rows=self.rng.randrange(1, 300), fails=True
        )
        assert not answer["ok"]
        assert self.ledger.pending() is not None

    def executor_killed(self) -> None:
        """The executor that runs a task dies as a whole; for drivers that have one."""
        driver = self.rng.choice([d for d in self.drivers.all() if d.master == LOCAL_CLUSTER])
        point = self.rng.choice(["row", "after receipt"])
        rows = self.rng.randrange(1, 600)
        self._with_fault(point, "kill executor", rows=rows, driver=driver, may_fail=True)

    def broker_killed(self) -> None:
        """The broker dies while a task reads, and comes back."""
        delay = self.rng.uniform(0, 1)
        self._with_fault(
            "row",
            "wait",
            rows=self.rng.randrange(1, 600),
            may_fail=True,
            then=lambda: self._bounce_broker(delay),
        )

    def broker_away(self) -> None:
        """The broker is away when the load is planned, and comes back."""
        back_at = time.monotonic() + self.rng.uniform(0.1, 1.5)
        self.broker.kill()

        def come_back() -> None:
            if not self.broker.running and time.monotonic() > back_at:
                self.broker.start()

        self._load("broker away", meanwhile=come_back)
        self.struck["broker away"] += 1

    def driver_killed(self) -> None:
        """The driver dies at a named point. Another one runs the load again while its JVM may still run."""
        point = self.rng.choice(self.driver_points)
        if self.ledger.pending() is not None and ("plan" in point or "sql" in point):
            point = "before commit"  # a replay makes no plan, and need not touch the database
        self._kill_driver(point)

    def driver_killed_before_its_commit(self) -> None:
        """All that it wrote is there, and the commit is not."""
        self._kill_driver("before commit")

    def _kill_driver(self, point: str) -> None:
        before = self._head()
        answer = self._load(f"driver killed at {point}", driver=self.drivers.pick(self.rng), die=point)
        self.struck["driver"] += 1
        assert answer["error"] == _DIED, answer
        counts = DRIVER_POINTS.index(point) >= COMMITTED_FROM
        assert self._head() == before + counts
        planned = point not in ("before plan", "plan written beside")
        assert (self.ledger.pending() is not None) == (planned and not counts)
        self._load_after_a_death()

    def driver_killed_in_its_tasks(self) -> None:
        """The driver dies while a task reads, and its tasks may go on for a while."""
        self._have_tasks_read()
        before = self._head()
        answer = self._with_fault("row", "kill process", rows=self.rng.randrange(1, 300), fails=True)
        assert answer["error"] == _DIED, answer
        assert self._head() == before
        assert self.ledger.pending() is not None
        self._load_after_a_death()

    def _load_after_a_death(self) -> None:
        """The dead driver's JVM may still be moving its files to where the next one writes; then that one is
        told to load again.
        """
        assert any(self._load("after the death")["ok"] for _ in range(_ATTEMPTS_AFTER_A_DEATH))

    def raised(self) -> None:
        """The user's code raises after the files are there: no reader sees them."""
        answer = self._load("raises", **{"raise": True})
        assert answer["error"] == "Refused", answer
        assert self.ledger.pending() is not None
        self.look()

    def discarded(self) -> None:
        """A plan whose files are there is given up; its offsets come again in another load."""
        self.raised()
        given_up = self.ledger.pending()
        assert given_up is not None
        answer = self._must_succeed("discards", on_pending="discard")
        assert answer["number"] == given_up.number + 1
        self.look()

    def rewound(self) -> None:
        """The loads after an earlier commit no longer count, and their offsets come again."""
        gone = max(self.ledger.numbers("removals"), default=0)  # before these there is no way back
        last = [c.number for c in self.ledger.lineage()[-3:] if c.number >= gone]
        target = self.rng.choice([0, *last])
        commit = self.ledger.rewind(target, "a rewind")
        self.note(f"rewind to {target}: commit {commit.number}")
        self._must_succeed("after the rewind")
        self.look()

    def compacted(self) -> None:
        """Small files are put together, by a driver that may die on the way; then what is left over goes.

        Readers see the same at each step.
        """
        self._have_nothing_pending()
        point = self.rng.choice([None, "files written", "before commit", "commit linked"])
        before = self._head()
        order = {"do": "compact", "path": self.path, "die": point}
        answer = self._ask(self.drivers.pick(self.rng), order)
        self.note(f"compaction, killed at {point}: {answer}")
        assert answer["ok"] or answer["error"] == _DIED, answer
        if point == "commit linked" and not answer["ok"]:
            assert self._head() == before + 1
        self.look()
        with self.ledger.hold("gc"):
            for found in removable_files(self.ledger, time.time_ns() // 1_000_000 + 1):
                assert not found.refused
                self.note(
                    f"    removed: {len(found.unlisted)} unlisted files, {len(found.replaced)} replaced"
                )
                remove_files(self.ledger, found, time.time_ns() // 1_000_000)
        self.look()

    def _have_nothing_pending(self) -> None:
        if self.ledger.pending() is not None:
            self._must_succeed("what is pending")

    def second_attempt(self) -> None:
        """A speculative attempt, in another process, overtakes the task; another one comes after the load."""

        def overtake() -> None:
            plan = self.ledger.pending()
            assert plan is not None
            self.read_again(plan.number)

        answer = self._with_fault("row", "wait", rows=self.rows_before_a_wait(), then=overtake)
        self.read_again(answer["number"])

    def rival(self) -> None:
        """Another driver wants the load while it runs, and is refused."""

        def intrude() -> None:
            try:
                with self.ledger.hold("a rival"):
                    raise AssertionError("the load is held twice")
            except LoadBusy:
                return

        self._with_fault("row", "wait", then=intrude)

    def partition_added(self) -> None:
        """The topic is widened."""
        partition = self.topic.add_partition()
        self.note(f"partition {partition} added")
        until(lambda: self.topic.acknowledged[partition])
        self._must_succeed("with a new partition")

    def look(self) -> None:
        """What a reader sees now is what is committed now."""
        if not any(commit.outputs for commit in self.ledger.lineage()):
            return
        self.note(f"seen: {check_table(self._read({'path': self.path}), self.ledger)} rows")

    def _read(self, what: dict[str, str]) -> Path:
        """A file with what a reader sees."""
        seen = self.directory / "seen.parquet"
        answer = self._ask(self.drivers.pick(self.rng), {"do": "read", "to": str(seen), **what})
        assert answer["ok"], answer
        return seen

    def finish(self) -> None:
        """The topic stops; the loads that are left; and everything is looked at."""
        self.topic.finish()
        for _ in range(_LAST_LOADS):
            if self._must_succeed("last")["empty"]:
                break
        head = self.ledger.head()
        assert head is not None
        assert [p.next for p in head.positions] == self.topic.acknowledged
        check_positions(self.ledger)
        self.look()
        assert self.ledger.verify() == []
        assert verification.verify_outputs(self.ledger.lineage()) == []

    # ---- how they are done

    def _have_tasks_read(self) -> None:
        """End a pending plan whose tasks may find that nothing is left to do: no fault would strike them."""
        if not self.replays_read and self.ledger.pending() is not None:
            self._must_succeed("what is pending")

    def _with_fault(
        self,
        point: str,
        action: str,
        *,
        times: int = 1,
        rows: int = 0,
        driver: SparkDriver | None = None,
        may_fail: bool = False,
        fails: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """A load in which a task runs into a fault; ``then`` is done once it struck."""
        self._have_tasks_read()
        driver = driver or self.drivers.pick(self.rng)
        rows = rows if point == "row" else 0
        fault = Fault(point, action, times, rows, driver.process.pid)
        done = []

        def meanwhile() -> None:
            if not done and driver.faults.hits(fault):
                done.append(True)
                then()
                driver.faults.let_go(fault)

        driver.faults.arm(fault)
        try:
            what = f"{action} at {point} {fault.rows or ''} x{times}"
            answer = self._load(what, driver=driver, meanwhile=meanwhile)
        finally:
            driver.faults.disarm()
        hits = driver.faults.hits(fault)
        self.note(f"    struck: {hits}")
        assert hits, f"{fault} never struck"
        self.struck[action] += len(hits)
        if not (may_fail or fails):
            assert answer["ok"], answer
        if fails and action == "kill":
            assert len(hits) == times
        return answer

    def _must_succeed(self, what: str, **order: Any) -> dict[str, Any]:
        answer = self._load(what, **order)
        assert answer["ok"], answer
        return answer

    def _load(
        self,
        what: str,
        *,
        driver: SparkDriver | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        on_pending: str = "replay",
        **order: Any,
    ) -> dict[str, Any]:
        """One load; whatever becomes of it, the ledger must tell what the documentation says."""
        driver = driver or self.drivers.pick(self.rng)
        pending, before = self.ledger.pending(), self._head()
        self.load_count += 1
        answer = self._ask(driver, self.order(on_pending) | order, meanwhile)
        if not self.broker.running:
            self.broker.start()
        self.topic.let_grow()
        told = answer["text"].strip().splitlines()[-1:] if "text" in answer else ""
        self.note(f"load on {driver.master}: {what}: {answer | {'text': told}}")
        if answer["ok"] and pending is not None and on_pending == "replay":
            assert answer["plan"] == pending.sha256
        if answer["ok"] and not answer["empty"]:
            assert answer["number"] == self._head()
        elif answer.get("error") != _DIED:
            assert self._head() == before + (pending is not None and on_pending == "discard")
        return answer

    def order(self, on_pending: str = "replay") -> dict[str, Any]:
        """What a driver is told. Tasks and Spark's writers write one table in turns, where both can."""
        may_choose = not self.transformed and "format" not in self.how
        chosen = {"engine": self.rng.choice(["tasks", "spark"])} if may_choose else {}
        return {
            "do": "load",
            "name": NAME,
            "offsets": self.offsets,
            "path": self.path,
            "options": self.options,
            "on_pending": on_pending,
            "transformed": self.transformed,
            "how": self.how | chosen,
        }

    def _ask(
        self, driver: SparkDriver, order: dict[str, Any], meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        try:
            return driver.ask(order, meanwhile)
        except DriverDied:
            self.drivers.died(driver)
            return {"ok": False, "error": _DIED, "text": ""}

    def rows_before_a_wait(self) -> int:
        """How many rows a task has read when others go on."""
        return self.rng.randrange(1, 600)

    def read_again(self, number: int) -> None:
        """Every task of a plan once more, here; each leaves its receipt again."""
        load = {"loadName": NAME, "offsetsPath": self.offsets, "loadPlan": str(number)}
        source = DefaultSource({**self.options, **load})
        reader = source.reader(source.schema())
        rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
        plan = self.ledger.plan(number)
        assert rows == sum(planned.end - planned.start for planned in plan.ranges)
        self.note(f"    plan {number} read once more: {rows} rows")

    def _bounce_broker(self, delay: float) -> None:
        self.broker.kill()
        time.sleep(delay)
        self.broker.start()

    def _head(self) -> int:
        head = self.ledger.head()
        return 0 if head is None else head.number

    def note(self, event: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {event}", flush=True)  # noqa: T201
