"""Several Spark drivers at once, so that when one dies another goes on while its remains still run."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.support.loads.spark_driver import START_SECONDS, SparkDriver
from tests.support.spark.spark_jvm import spark_home
from tests.support.stopping import still_there

LOCAL = "local[2,4]"
"""Two cores, four attempts at a task."""

LOCAL_CLUSTER = "local-cluster[2,1,900]"
"""Two executors in processes of their own, a core and 900 MiB each."""


class Drivers:
    """*Not thread-safe.* One driver for each master; a dead one is replaced when it is needed, or at once."""

    def __init__(
        self,
        directory: Path,
        masters: Sequence[str],
        *,
        replace_at_once: bool = False,
        pyspark: Path | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """``pyspark`` is where another than the suite's is, ``configs`` are those of Spark that are added."""
        self._directory = directory
        self._pyspark = pyspark
        self._configs = dict(configs or {})
        self._masters = tuple(masters)
        self._replace_at_once = replace_at_once
        self._numbers = itertools.count()
        self._running: list[SparkDriver] = []
        self._resting: list[SparkDriver] = []
        self._started: list[SparkDriver] = []
        self._remains: list[psutil.Process] = []
        self._applications: list[str] = []

    def pick(self, rng: random.Random) -> SparkDriver:
        """Any driver whose session is up; one is started where none is."""
        self._forget_killed()
        self._rise()
        if not self._running:
            self._resting = self._resting or [self._start(self._masters[0])]
            self._take_up(self._resting)
        return rng.choice(self._running)

    def all(self) -> list[SparkDriver]:
        """A driver for each master, started side by side where they are missing."""
        self._forget_killed()
        missing = list(self._masters)
        for driver in (*self._running, *self._resting):
            missing.remove(driver.master)
        self._resting += [self._start(master) for master in missing]
        self._take_up(self._resting)
        return list(self._running)

    def _forget_killed(self) -> None:
        """Those that were killed as they gave no answer."""
        self._running = [driver for driver in self._running if driver.alive]

    def died(self, driver: SparkDriver) -> None:
        """Tell that a driver was killed. Its JVM ends by itself: it is left alone, as after a real crash."""
        driver.close()
        self._running.remove(driver)
        if self._replace_at_once:
            self._resting.append(self._start(driver.master))

    def stop(self) -> None:
        """End them all, with everything they started."""
        self._take_up(self._resting)  # to know what they leave behind
        for driver in self._started:
            driver.stop()
        for process in still_there(self._remains, seconds=10):
            process.kill()
        # A local cluster's workers keep their files in Spark's own directory, whatever they are told.
        for application in self._applications:
            shutil.rmtree(spark_home(self._pyspark) / "work" / application, ignore_errors=True)

    def _start(self, master: str) -> SparkDriver:
        own = self._directory / f"driver-{next(self._numbers)}"
        self._started.append(SparkDriver.start(master, own, self._pyspark, self._configs))
        return self._started[-1]

    def _rise(self) -> None:
        """Take up those that have had time to start."""
        self._take_up([d for d in self._resting if time.monotonic() - d.began > START_SECONDS])

    def _take_up(self, drivers: list[SparkDriver]) -> None:
        """Wait until their sessions are up."""
        with ThreadPoolExecutor() as pool:
            for answer in pool.map(lambda driver: driver.ask({"do": "hello"}), drivers):
                self._applications.append(answer["application"])
        for driver in drivers:
            self._remains += psutil.Process(driver.process.pid).children(recursive=True)
        self._running += drivers
        self._resting = [driver for driver in self._resting if driver not in drivers]
