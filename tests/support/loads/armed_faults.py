"""Faults that strike in other processes, at named points, as often as they were armed. By files:

The test arms one fault at a time; the processes that run into its point claim it, each claim once:

    armed.json      the fault
    hit-7-0         fault 7 struck for the first time; its content says where
    go-7            whoever waits at fault 7 may go on
"""

from __future__ import annotations

import itertools
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

FAULTS_VARIABLE = "KAFKALOG_TEST_FAULTS"
"""The environment variable with the directory, for Spark's workers."""

_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens ``times`` times when a process comes to ``point``.

    ``action``: ``kill`` this worker, ``kill executor``, ``kill process`` (that of ``pid``) or ``wait``. Once
    it struck a task it strikes only that one again, so that ``times`` attempts at one task fail.
    """

    point: str
    action: str
    times: int = 1
    rows: int = 0
    """At point ``row``: how many rows the task has read by then."""
    pid: int = 0
    id: int = field(default_factory=itertools.count(1).__next__)
    """Each fault that a test makes has its own."""


class ArmedFaults:
    """*Not thread-safe; any number of processes may have one of their own.* The faults of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._armed = directory / "armed.json"

    def arm(self, fault: Fault) -> None:
        """From now on ``fault`` strikes, and no other."""
        unfinished = self._directory / "armed.new"
        unfinished.write_text(json.dumps(asdict(fault)))
        unfinished.replace(self._armed)

    def disarm(self) -> None:
        """Nothing strikes any more; whoever waits goes on."""
        fault = self.armed()
        self._armed.unlink(missing_ok=True)
        if fault is not None:
            self.let_go(fault)

    def let_go(self, fault: Fault) -> None:
        """Whoever waits at ``fault`` goes on."""
        (self._directory / f"go-{fault.id}").touch()

    def hits(self, fault: Fault) -> list[str]:
        """Where it struck, in order."""
        found = []
        for number in range(fault.times):
            with suppress(FileNotFoundError):
                found.append(self._hit(fault, number).read_text())
        return found

    def armed(self) -> Fault | None:
        """The fault that is armed, if there is one."""
        try:
            return Fault(**json.loads(self._armed.read_text()))
        except FileNotFoundError:
            return None

    def claim(self, fault: Fault, task: str) -> bool:
        """Whether the fault strikes here and now. ``task`` names the task that came to its point."""
        first = self.hits(fault)[:1]
        if first and first != [task]:
            return False
        unfinished = self._directory / f"claim-{os.getpid()}-{time.monotonic_ns()}"
        unfinished.write_text(task)
        try:
            for number in range(fault.times):
                with suppress(FileExistsError):
                    os.link(unfinished, self._hit(fault, number))
                    # Two tasks may have come at once: the second finds that the fault is the other's.
                    return self.hits(fault)[0] == task
        finally:
            unfinished.unlink()
        return False

    def wait(self, fault: Fault) -> None:
        """Until `let_go` was called for the fault, for as long as a test may take at most."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not (self._directory / f"go-{fault.id}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _hit(self, fault: Fault, number: int) -> Path:
        return self._directory / f"hit-{fault.id}-{number}"
