"""What a test file leaves behind is found when the file ends, and not in some later test of another file.

A socket, file or process that nobody closes warns when it is collected, and warnings are errors. A thread
that keeps the interpreter from ending, or a child process, must have ended with the fixtures of its file.
What a fixture of the session starts, such as a ZooKeeper server or Spark's JVM, lives longer.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kafkalog_broker.server.broker import look_through_once

_PATIENCE_SECONDS = 60.0
"""A thread or process that was told to end may take a while on a busy machine."""

_HELPERS = (
    b"multiprocessing.forkserver",
    b"multiprocessing.resource_tracker",
    b"tests.support.loads.spark_driver",
)
"""Python starts one of each of the first two for all of its processes, and ends them itself. A Spark driver
that a test has killed is replaced in the session's fixture.
"""


_CLIENTS = ("kafkalog-", "kafka-", "(zk_loop)")
"""A client that nobody closed tries again for hours; Hypothesis sees its jitter come out of `random`."""


class Leaks:
    """*Not thread-safe.* A pytest plugin. ``_shared`` is what fixtures of the session have started."""

    def __init__(self) -> None:
        self._shared: set[object] = set()

    def pytest_collection_finish(self) -> None:
        # Modules and collected tests live to the end: they need not be looked at in each collection.
        gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.scope not in ("session", "package"):
            return (yield)
        before = _running()
        try:
            return (yield)
        finally:
            self._shared |= _running() - before

    def watch(self, module: ModuleType) -> Iterator[None]:
        """The life of a test file, as a fixture has it."""
        before = _running()
        if _draws(module):
            gc.unfreeze()  # Hypothesis asks the collector who holds its generators of random numbers
            yield
        else:
            yield
            gc.collect()
            # A broker that ran in this process has had it freeze what a collection leaves.
            gc.callbacks[:] = [each for each in gc.callbacks if not _is_of_a_broker(each)]
        gc.freeze()  # what stays is global: modules that were imported meanwhile, caches
        left = _running() - before - self._shared
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while left and time.monotonic() < deadline:
            time.sleep(0.01)
            left &= _running()
        assert not left, f"left running: {', '.join(sorted(map(_name, left)))}"


def _is_of_a_broker(callback: object) -> bool:
    return getattr(callback, "__module__", None) == look_through_once.__module__


def _draws(module: ModuleType) -> bool:
    """Whether it has properties; they are of pure code, and leave nothing open."""
    return any(getattr(each, "__module__", "").startswith("hypothesis") for each in vars(module).values())


def _running() -> set[object]:
    """Threads that are no daemons, or of a Kafka client, and child processes by their ids."""
    threads = {t for t in threading.enumerate() if not t.daemon or any(name in t.name for name in _CLIENTS)}
    return threads | _children()


def _children() -> set[object]:
    """Ids of this process's children; none where the system does not say."""
    found: set[object] = set()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            pids = path.read_bytes().split()
        except OSError:
            continue  # the thread has just ended
        found |= {int(pid) for pid in pids if not any(name in _command(int(pid)) for name in _HELPERS)}
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _name(running: object) -> str:
    if isinstance(running, threading.Thread):
        return f"thread {running.name}"
    command = _command(int(str(running))).replace(b"\0", b" ").decode(errors="replace")
    return f"process {running}: {command[:200]}"
