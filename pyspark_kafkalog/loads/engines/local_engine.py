"""Tasks in processes of this machine, without Spark. Workers are started as programs, so that notebooks, and
scripts that do not guard their main code, work.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from types import TracebackType

from pyspark_kafkalog.datasource.batch.spark_classes import WITHOUT_SPARK
from pyspark_kafkalog.errors import KafkaError, LoadError
from pyspark_kafkalog.loads.engines.engine import RangeTask
from pyspark_kafkalog.loads.engines.worker import Answer, read_message, write_message


class LocalEngine:
    """*Not thread-safe.*"""

    def __init__(self, processes: int | None = None) -> None:
        """``processes``: by default one for each processor that this process may use."""
        self._processes = processes or _processors()
        self.master = f"local[{self._processes}]"

    def run(self, task: RangeTask, count: int) -> list[str]:
        import cloudpickle

        pickled, left = cloudpickle.dumps(task), deque(range(count))
        with ExitStack() as ending:
            workers = [ending.enter_context(_Worker(pickled)) for _ in range(min(self._processes, count))]
            pool = ending.enter_context(ThreadPoolExecutor(max(1, len(workers))))
            try:
                done = [pool.submit(worker.run, left) for worker in workers]
                return [line for one in as_completed(done) for line in one.result()]
            except BaseException:
                left.clear()
                for worker in workers:
                    worker.kill()
                raise


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # of Linux only
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


class _Worker:
    """A process that runs tasks, and ends with the context. *Each method belongs to one thread.*"""

    def __init__(self, task: bytes) -> None:
        self._task = task

    def __enter__(self) -> _Worker:
        path = os.pathsep.join(one or os.getcwd() for one in sys.path)  # noqa: PTH109  as Python reads ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_kafkalog.loads.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, WITHOUT_SPARK: "1"},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.communicate()

    def kill(self) -> None:
        self._process.kill()

    def run(self, left: deque[int]) -> list[str]:
        """Do what is left, one at a time; returns what the tasks said."""
        lines: list[str] = []
        self._send(self._task)
        while left:
            try:
                index = left.popleft()
            except IndexError:  # another worker took it
                break
            self._send(str(index).encode())
            answer = self._answer(index)
            if answer.error is not None:
                if isinstance(answer.error, KafkaError):
                    raise answer.error
                raise answer.error from _TaskTrace(answer.trace)
            lines += answer.lines
        return lines

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, message)
        except OSError:
            pass  # it has ended: `_answer` says how

    def _answer(self, index: int) -> Answer:
        assert self._process.stdout is not None
        found = read_message(self._process.stdout)
        if found is None:
            code = self._process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            hint = ": was there too little memory?" if code == -9 else ""
            raise LoadError(
                f"the process of task {index} ended {how}{hint}. Nothing was committed; the next load "
                "replays the plan"
            )
        answer: Answer = pickle.loads(found)
        return answer


class _TaskTrace(Exception):
    """The trace of an error that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
