"""Does the memory of a Spark worker stay flat, however long the log that it reads?

One task reads 5 GiB of one partition to ``noop``. The resident memory of the Python worker is sampled all the
while: the most that it has during the first tenth of the read, over the most that it has in the rest. One
that kept anything of what it read would show as a ratio far below 1. The figures are MiB; interpreter, Arrow
and numba are in them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Row
from benchmarks.spark_read import fill, noop, session
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.columnar.decoder import WARM_UP_RECORDS

GIB = 5
VALUE_BYTES = 1000
GOAL = 0.9
_SAMPLE_SECONDS = 0.05
_MIB = 1 << 20


def run(_rounds: int = 1) -> list[Row]:
    """One row; about a minute. Nothing is repeated: the samples of one long read are the measurement."""
    with (
        tempfile.TemporaryDirectory() as directory,
        start_broker({"log.retention.ms": -1}, data_dir=Path(directory)) as running,
        session(1) as spark,
    ):
        fill(running.port, "long", VALUE_BYTES, (GIB << 30) // VALUE_BYTES)
        options = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": "long"}
        frame = spark.read.format("kafkalog").options(**options).load()
        # Before anything is measured the worker is there, with its compiled decoder, which it keeps.
        end = f'{{"long":{{"0":{2 * WARM_UP_RECORDS}}}}}'
        noop(spark.read.format("kafkalog").options(**options, endingOffsets=end).load())
        seen = watched(lambda: noop(frame))
    early, late = seen.most(0, 0.1), seen.most(0.1, 1)
    question = f"{GIB} GiB through one worker: most memory in the first tenth, over the rest"
    note = f"peer: the rest of the same read; {len(seen.samples)} samples in {seen.seconds:.0f} s"
    return [Row(question, early / _MIB, late / _MIB, early / late, GOAL, "MiB", note)]


@dataclass
class Watch:
    """Samples ``(seconds since the beginning, resident bytes of the largest worker)``."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.samples[-1][0]

    def most(self, begin: float, end: float) -> int:
        """The largest sample between two shares of the whole time, in bytes."""
        whole = self.seconds
        return max(rss for at, rss in self.samples if begin * whole <= at <= end * whole)


def watched(work: Callable[[], object]) -> Watch:
    """Do ``work``, and see what the Python workers of this process's Spark hold meanwhile."""
    watch = Watch()
    with _sampling(watch):
        work()
    return watch


@contextmanager
def _sampling(watch: Watch) -> Iterator[None]:
    done, began = threading.Event(), time.monotonic()

    def sample() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            rss = max(_workers(), default=0)
            if rss:
                watch.samples.append((time.monotonic() - began, rss))

    thread = threading.Thread(target=sample, name="memory of workers")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _workers() -> Iterator[int]:
    """The resident bytes of each worker that PySpark's daemons forked."""
    for process in psutil.Process().children(recursive=True):
        try:
            parent: Any = process.parent()
            if parent is not None and _is_daemon(process) and _is_daemon(parent):
                yield process.memory_info().rss
        except psutil.Error:
            continue


def _is_daemon(process: psutil.Process) -> bool:
    return "pyspark.daemon" in " ".join(process.cmdline())
