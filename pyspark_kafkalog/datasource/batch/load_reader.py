"""The batch read of a load: it reads the plan's ranges, and leaves receipts."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark_kafkalog.datasource.batch.batch_reader import (
    BatchReader,
    KafkaInputPartition,
    attempt_number,
    tasks_of,
)
from pyspark_kafkalog.datasource.batch.load_planning import begin, commit_to_group, propose
from pyspark_kafkalog.datasource.batch.spark_classes import InputPartition, TaskContext
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, LoadOptions
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.errors import DamagedRecord, LoadBusy, LoadError, LostRace, TopicRecreated, briefly
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.ledger.receipts import Receipt

_PLANNING_SECONDS = 120.0
_NAMING_SECONDS = 0.5
_LOOK_EVERY_SECONDS = 0.05


@dataclass(frozen=True)
class LoadInputPartition(KafkaInputPartition):
    """One task of a plan: its range number ``index``. ``run`` is the same in all tasks of one DataFrame."""

    plan: int
    plan_sha256: str
    index: int
    run: str

    @property
    def planned(self) -> PlannedRange:
        broker = self.topic_partition.broker
        return PlannedRange(self.topic, self.partition, self.topic_id, self.start, self.end, broker=broker)


class LoadReader(BatchReader):
    """Reads a load's plan; settings only, as `BatchReader`."""

    def __init__(
        self, options: BatchOptions, columns: Sequence[str], load: LoadOptions, run: str | None = None
    ) -> None:
        """``run`` names the DataFrame; without it each plan is a run of its own."""
        super().__init__(options, columns)
        self._run = run
        self._load = load
        self._ledger = Ledger.at(load.offsets_path, load.name)

    @briefly
    def partitions(self) -> Sequence[InputPartition]:
        run = self._run or uuid.uuid4().hex
        plan = self._plan_to_read(run)
        if plan is None:
            return []
        leaders = {p.key: p.leader for p in plan.partitions}
        ranges = [OffsetRange(r.key, r.start, r.end) for r in plan.ranges]
        with self._opened() as cluster:
            # Brokers may have moved: a plan may be read again long after it was made.
            tasks = tasks_of(cluster, ranges, leaders, {r.topic: r.topic_id for r in plan.ranges})
        if self._is_preview:
            return tasks
        return [
            LoadInputPartition(
                **vars(task),
                plan=plan.number,
                plan_sha256=plan.sha256,
                index=index,
                run=run,
            )
            for index, task in enumerate(tasks)
        ]

    @property
    def _is_preview(self) -> bool:
        return self._load.plan is None and not self._load.commits

    def _plan_to_read(self, run: str) -> Plan | None:
        if self._load.plan is not None:
            return self._ledger.plan(self._load.plan)
        with self._opened() as cluster:
            if self._is_preview:
                return propose(self._options, cluster, self._ledger)
            with self._held(run):
                head = self._ledger.head()
                if head is not None and (head.mode, head.run) == ("stage", run):
                    # Another scan of this DataFrame finished before this one was planned.
                    return self._ledger.plan(head.number)
                try:
                    return begin(self._options, cluster, self._ledger, run=run)
                except LostRace:
                    # The store's locks do not reach the other driver: its plan is as good as ours.
                    return begin(self._options, cluster, self._ledger, run=run)

    def _held(self, run: str) -> ExitStack:
        """The load's lock. Scans of one DataFrame that are planned at the same time wait for each other."""
        began = time.monotonic()
        while True:
            held = ExitStack()
            try:
                held.enter_context(self._ledger.hold(f"the planning of a stage read, run {run}"))
            except LoadBusy as e:
                # A holder writes its name a moment after it has the lock.
                patience = _PLANNING_SECONDS if run in str(e) else _NAMING_SECONDS
                if time.monotonic() - began > patience:
                    raise
                time.sleep(_LOOK_EVERY_SECONDS)
            else:
                return held

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, which then leaves its receipt, and perhaps commits the load. `LostRace`:
        another run committed this plan, so these rows must not count.
        """
        if not isinstance(partition, LoadInputPartition):
            yield from super()._rows(partition)
            return
        with ThreadPoolExecutor(1) as pool:  # while the first rows are on their way
            plan = pool.submit(self._plan_of, partition)
            run = partition.run if self._load.token else self._load.run
            receipt = yield from self.rows_of(partition, plan.result, run=run)
        self._ledger.leave_receipt(receipt, partition.index)
        if self._load.commits and not self._load.token:
            self._commit_if_last(partition, plan.result())

    def _plan_of(self, task: LoadInputPartition) -> Plan:
        ledger = self._ledger
        try:
            plan = _plan(self._load.offsets_path, self._load.name, task.plan, task.plan_sha256)
        except DamagedRecord:
            if ledger.known():
                raise
            raise LoadError(
                f"offsetsPath is not reachable from the executors: {ledger.location}, where plan {task.plan} "
                f"was written, does not exist on {socket.gethostname()}. Choose a directory that driver and "
                "executors share; kafkalog.load(..., receipts=False) does without one"
            ) from None
        if self._load.commits:
            self._refuse_if_committed_by_another(task)
        return plan

    def rows_of(
        self, task: LoadInputPartition, plan: Callable[[], Plan], *, run: str = ""
    ) -> Generator[pa.RecordBatch, None, Receipt]:
        """The rows of a task; returns their receipt, not yet stored."""
        from pyspark_kafkalog.ledger.receipts import TALLY_COLUMNS, Tally

        tally, began = Tally(), time.monotonic()
        extra = tuple(name for name in TALLY_COLUMNS if name not in self._columns)
        where = task.topic_partition
        with self._opened(task) as cluster:
            topic_id = cluster.topic_ids([where]).get(task.topic)
            if task.topic_id and topic_id and topic_id != task.topic_id:
                # It may have the planned offsets, with other records.
                raise TopicRecreated(
                    f"{where} was deleted and created again after it was planned: topic id {task.topic_id} "
                    f"is now {topic_id}. onTopicRecreated says what the next load does"
                )
            wanted = OffsetRange(where, task.start, task.end)
            for batch in cluster.rows(wanted, self._columns + extra, tally.lose, tally.skip):
                plan()
                tally.add(batch)
                yield batch.select(self._columns) if extra else batch
        return tally.receipt(
            plan(),
            task.planned,
            attempt=attempt_number(),
            host=socket.gethostname(),
            duration_ms=round((time.monotonic() - began) * 1000),
            run=run,
        )

    def _commit_if_last(self, task: LoadInputPartition, plan: Plan) -> None:
        """Counts marks of this action only: a failed run left receipts too, but no rows in our output."""
        action = f"{task.run}-{_action()}"
        self._ledger.mark_read(plan.number, task.index, action)
        if self._ledger.first_unread(plan, action, after=task.index) is not None:
            return
        self._refuse_if_committed_by_another(task)
        commit = self._ledger.commit(plan, mode="stage", run=task.run)
        commit_to_group(self._options, commit)

    def _refuse_if_committed_by_another(self, task: LoadInputPartition) -> None:
        commit = self._ledger.commit_of(task.plan)
        if commit is not None and commit.run != task.run:
            raise LostRace(
                f"another driver committed load {task.plan} of {self._ledger.location} (mode {commit.mode}) "
                "while this read ran: discard this output. The next load begins where that one ended"
            )


@lru_cache(maxsize=1)
def _plan(offsets_path: str, name: str, number: int, sha256: str) -> Plan:
    """The plan with this seal, cached for the process: large plans may take longer to read than records."""
    ledger = Ledger.at(offsets_path, name)
    plan = ledger.plan(number)
    if plan.sha256 != sha256:
        raise DamagedRecord(
            f"plan {number} of {ledger.location} is not the one that this read was planned with: the ledger "
            "was replaced meanwhile. Make a new DataFrame with load()"
        )
    return plan


def _action() -> str:
    """An id of one action only: the SQL execution (``show()`` may start several jobs), or else the stage."""
    context = TaskContext.get()
    if context is None:
        return "direct"
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"stage-{context.stageId()}" if execution is None else f"execution-{execution}"
