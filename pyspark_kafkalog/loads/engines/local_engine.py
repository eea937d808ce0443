"""Tasks in processes of this machine, without Spark. Workers are forked by a program that is started for
them, so that notebooks, and scripts that do not guard their main code, work.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from types import TracebackType

from pyspark_kafkalog.errors import KafkaError, LoadError
from pyspark_kafkalog.loads.engines.engine import RangeTask
from pyspark_kafkalog.loads.engines.worker import END_OF_TASK, Answer, read_message, write_message


class LocalEngine:
    """*Not thread-safe*, but for `progress`."""

    def __init__(self, processes: int | None = None) -> None:
        """``processes``: by default one for each processor that this process may use."""
        self._processes = processes or _processors()
        self.master = f"local[{self._processes}]"
        self._workers: _Workers | None = None
        self._read: dict[int, int] = {}

    @contextmanager
    def ready(self, count: int, offsets: int) -> Iterator[None]:
        processes = min(self._processes, count)
        with _Workers(processes, offsets // processes) as workers:
            self._workers = workers
            try:
                yield
            finally:
                self._workers = None

    def run(self, task: RangeTask, count: int) -> list[str]:
        self._read.clear()
        if self._workers is not None:
            return self._workers.run(task, count, self._read)
        with _Workers(min(self._processes, count)) as workers:
            return workers.run(task, count, self._read)

    def progress(self) -> int:
        return sum(list(self._read.values()))


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # of Linux only
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


class _Workers:
    """Processes that run tasks, and the one that forks them; they end with the context. *Belongs to one
    thread.*
    """

    def __init__(self, count: int, offsets: int = 0) -> None:
        """``offsets``: how many each will read."""
        self._count, self._offsets = count, offsets
        self._ends: dict[int, int] = {}
        self._looking = threading.Lock()

    def __enter__(self) -> _Workers:
        tasks, answers = ([os.pipe() for _ in range(self._count)] for _ in range(2))
        theirs = [(task[0], answer[1]) for task, answer in zip(tasks, answers, strict=True)]
        path = os.pathsep.join(one or os.getcwd() for one in sys.path)  # noqa: PTH109  as Python reads ""
        pipes = ",".join(f"{reads}:{writes}" for reads, writes in theirs)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_kafkalog.loads.engines.worker", pipes, str(self._offsets)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[fd for pair in theirs for fd in pair],
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            for fd in (fd for pair in theirs for fd in pair):
                os.close(fd)
        self._workers = [
            _Worker(index, task[1], answer[0], self)
            for index, (task, answer) in enumerate(zip(tasks, answers, strict=True))
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.communicate()
        for worker in self._workers:
            worker.close()

    def kill(self) -> None:
        self._process.terminate()  # it kills its workers

    def run(self, task: RangeTask, count: int, read: dict[int, int]) -> list[str]:
        """Do ranges 0 to ``count`` - 1; ``read`` is told how far each is."""
        import cloudpickle

        pickled, left = cloudpickle.dumps(task), deque(range(count))
        with ThreadPoolExecutor(max(1, self._count)) as pool:
            try:
                done = [pool.submit(worker.run, pickled, left, read) for worker in self._workers]
                return [line for one in as_completed(done) for line in one.result()]
            except BaseException:
                left.clear()
                self.kill()
                raise

    def end_of(self, index: int) -> int:
        """The exit code of a worker that has ended, or of all. *Thread-safe.*"""
        assert self._process.stdout is not None
        with self._looking:
            while index not in self._ends:
                line = self._process.stdout.readline()
                if not line:
                    return self._process.wait()
                ended, code = map(int, line.split())
                self._ends[ended] = code
            return self._ends[index]


class _Worker:
    """The driver's side of one process. *Each method belongs to one thread.*"""

    def __init__(self, index: int, tasks: int, answers: int, workers: _Workers) -> None:
        """``tasks`` and ``answers`` are descriptors of pipes."""
        self._index, self._workers = index, workers
        self._tasks, self._answers = os.fdopen(tasks, "wb"), os.fdopen(answers, "rb")

    def close(self) -> None:
        with suppress(OSError):  # what nobody has read
            self._tasks.close()
        self._answers.close()

    def run(self, task: bytes, left: deque[int], read: dict[int, int]) -> list[str]:
        """Do what is left, one at a time; returns what the tasks said."""
        lines: list[str] = []
        self._send(task)
        while left:
            try:
                index = left.popleft()
            except IndexError:  # another worker took it
                break
            self._send(str(index).encode())
            while isinstance(said := self._message(index), int):
                read[index] = said
            if said.error is not None:
                if isinstance(said.error, KafkaError):
                    raise said.error
                raise said.error from _TaskTrace(said.trace)
            lines += said.lines
        self._send(END_OF_TASK)
        return lines

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it has ended: `_message` says how
            write_message(self._tasks, message)

    def _message(self, index: int) -> Answer | int:
        """The answer of the task, or how far it is."""
        found = read_message(self._answers)
        if found is None:
            code = self._workers.end_of(self._index)
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            hint = ": was there too little memory?" if code == -9 else ""
            raise LoadError(
                f"the process of task {index} ended {how}{hint}. Nothing was committed; the next load "
                "replays the plan"
            )
        said: Answer | int = pickle.loads(found)
        return said


class _TaskTrace(Exception):
    """The trace of an error that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
