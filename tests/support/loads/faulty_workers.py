"""Spark's daemon of Python workers, ``spark.python.daemon.module``, whose workers run into armed faults.

It is pyspark's own daemon; before it forks, the steps of a load's task are wrapped:

    row             a batch was read, and with it at least so many rows; at the latest when all were read
    before receipt, after receipt
    before mark     commitOffsets=stage: the receipt is left, the mark that counts the task is not
    before commit, after commit     commitOffsets=stage: in the task that commits
    before sql commit, after sql commit     of the transaction with a range's rows and offsets
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.daemon import manager

from pyspark_kafkalog.ledger import receipts
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.sql.database import DatabaseSession
from tests.support.loads.armed_faults import FAULTS_VARIABLE, ArmedFaults, Fault

_EXECUTOR = "CoarseGrainedExecutorBackend"


class _FaultyTally(receipts.Tally):
    """A tally that comes to ``row`` with each batch."""

    rows = 0
    task = ""

    def add(self, batch: Any) -> None:
        super().add(batch)
        if batch.num_rows and "partition" in batch.schema.names:
            self.task = self.task or f"{batch['topic'][0]}-{batch['partition'][0]} from {batch['offset'][0]}"
            self.rows += batch.num_rows
            _come_to("row", self.task, self.rows)


def install() -> None:
    """Wrap the steps, for this process and those it forks."""
    receipts.Tally = _FaultyTally  # type: ignore[misc]
    _surround("leave_receipt", "receipt", _task_of)
    _surround("mark_read", "mark", lambda plan, index, *_: f"plan {plan}, range {index}")
    _surround("commit", "commit", lambda plan: f"plan {plan.number}")
    commit = DatabaseSession.commit

    def faulty_commit(self: DatabaseSession) -> None:
        context = TaskContext.get()
        task = f"task {context.partitionId() if context else None}"
        _come_to("before sql commit", task)
        commit(self)
        _come_to("after sql commit", task)

    DatabaseSession.commit = faulty_commit  # type: ignore[method-assign]


def _task_of(receipt: receipts.Receipt, _index: int) -> str:
    return f"{receipt.topic}-{receipt.partition} from {receipt.first_offset}"


def _surround(method: str, step: str, task_of: Callable[..., str]) -> None:
    plain = getattr(Ledger, method)

    @wraps(plain)
    def surrounded(self: Ledger, *args: Any, **named: Any) -> Any:
        task = task_of(*args)
        if step == "receipt":
            _come_to("row", task, sys.maxsize)
        _come_to(f"before {step}", task)
        result = plain(self, *args, **named)
        _come_to(f"after {step}", task)
        return result

    setattr(Ledger, method, surrounded)


def _come_to(point: str, task: str, rows: int = 0) -> None:
    directory = os.environ.get(FAULTS_VARIABLE)
    if directory is None:
        return
    faults = ArmedFaults(Path(directory))
    fault = faults.armed()
    if fault is not None and fault.point == point and rows >= fault.rows and faults.claim(fault, task):
        _strike(faults, fault)


def _strike(faults: ArmedFaults, fault: Fault) -> None:
    if fault.action == "wait":
        faults.wait(fault)
        return
    if fault.action == "kill executor":
        executor = psutil.Process(os.getppid()).parent()
        if executor is None or not any(_EXECUTOR in word for word in executor.cmdline()):
            raise RuntimeError(f"the daemon's parent is no executor: {executor}")
        executor.kill()
    elif fault.action == "kill process":
        os.kill(fault.pid, signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    install()
    manager()
