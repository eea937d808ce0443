"""Tasks of loads without Spark in the driver's process: `tests/broker/loads/test_local_loads.py` starts
others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pyspark_kafkalog.loads.engines.engine import RangeTask, tell_nobody
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine


def run_here(_: LocalEngine, task: RangeTask, count: int) -> list[str]:
    return [line for index in range(count) for line in task(index, tell_nobody)]


def _ready(_: LocalEngine, count: int, offsets: int) -> AbstractContextManager[None]:
    return nullcontext()


def run_tasks_here(patch: Callable[[type, str, object], None]) -> None:
    """``patch`` is `setattr`, or pytest's."""
    patch(LocalEngine, "run", run_here)
    patch(LocalEngine, "ready", _ready)
