"""What the tests cost in processor seconds, child processes included.

    python -m tests.support.budget          the last run, by suite
    python -m tests.support.budget --slow   and its most expensive tests

A pytest plugin, registered by tests/conftest.py, measures; its numbers are in pytest's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_KEY = "kafkalog/processor_seconds"
_CACHED = Path(__file__).parents[2] / ".pytest_cache" / "v" / _KEY
_PROPERTY = "processor_seconds"
_COLLECTING = "collecting"
_TICKS = os.sysconf("SC_CLK_TCK")

_LOOK_SECONDS = 0.5
"""Between two looks, but for the end of a file. One asks each thread of each child process, of which Spark
and ZooKeeper have hundreds: up to 17 ms. After each step of each test that was a quarter of `make test`.
"""


def processor_seconds() -> float:
    """Of this process, all children that have ended, and (Linux) all that run."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    running = _children(os.getpid())
    while running:
        pid = running.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        # Fields 14 to 17 of proc(5): user, system, and those of its children that have ended.
        total += sum(map(int, fields[11:15])) / _TICKS
        running += _children(pid)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - this is called after each test
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except OSError:
        pass
    return found


class Budget:
    """*Not thread-safe.* Measures in each process; the one that reports keeps the sums."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._before = 0.0
        self._looked = 0.0
        self._ends_file = False
        self._seconds: Counter[str] = Counter()
        self._started = time.monotonic()

    def pytest_collection_finish(self) -> None:
        self._before = processor_seconds()
        if self._is_worker:
            self._config.workeroutput[_COLLECTING] = self._before  # type: ignore[attr-defined]
        else:
            self._seconds[_COLLECTING] += self._before

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        self._ends_file = nextitem is None or nextitem.path != item.path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        # What quick tests take counts for the one at whose end this looks.
        if call.when != "teardown" or not (
            self._ends_file or time.monotonic() - self._looked > _LOOK_SECONDS
        ):
            return (yield)
        now = processor_seconds()
        # Less than nothing where a process was killed whose parent never waited for it.
        item.user_properties.append((_PROPERTY, max(0.0, now - self._before)))
        self._before, self._looked = now, time.monotonic()
        report = yield
        item.user_properties.pop()
        return report  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._is_worker:
            self._seconds[report.nodeid] += sum(v for k, v in report.user_properties if k == _PROPERTY)  # type: ignore[misc]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        self._seconds[_COLLECTING] += getattr(node, "workeroutput", {}).get(_COLLECTING, 0.0)

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)
        if not self._is_worker and cache is not None and len(self._seconds) > 1:
            cache.set(_KEY, {"wall": time.monotonic() - self._started, "tests": dict(self._seconds)})


def suite_of(nodeid: str) -> str:
    """``tests/broker/server/test_x.py::test_y`` is in ``broker``; fault/loads and what collects are apart."""
    parts = nodeid.partition("::")[0].split("/")
    return "fault/loads" if parts[1:3] == ["fault", "loads"] else parts[1] if len(parts) > 1 else parts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor seconds of the last run of pytest, by suite.")
    parser.add_argument(
        "--slow", type=int, nargs="?", const=30, default=0, metavar="N", help="and its N dearest tests"
    )
    arguments = parser.parse_args()
    if not _CACHED.exists():
        sys.exit("no run yet: run make test first")
    run = json.loads(_CACHED.read_text())
    by_suite, counts = Counter[str](), Counter[str]()
    for nodeid, seconds in run["tests"].items():
        by_suite[suite_of(nodeid)] += seconds
        counts[suite_of(nodeid)] += nodeid != _COLLECTING
    print("| Suite | Tests | Processor seconds |\n| --- | ---: | ---: |")
    for suite, seconds in by_suite.most_common():
        print(f"| {suite} | {counts[suite] or ''} | {seconds:.0f} |")
    print(f"| all | {counts.total()} | {by_suite.total():.0f} (wall time {run['wall']:.0f} s) |")
    for nodeid, seconds in sorted(run["tests"].items(), key=lambda item: -item[1])[: arguments.slow]:
        print(f"{seconds:8.2f}  {nodeid}")


if __name__ == "__main__":
    main()
