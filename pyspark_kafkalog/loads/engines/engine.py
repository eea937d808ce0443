"""The interface of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

RangeTask = Callable[[int], Iterable[str]]
"""Does the work of range number N, and says in lines of text what it did. Pickled with cloudpickle."""


class Engine(Protocol):
    """*Belongs to one driver.*"""

    @property
    def master(self) -> str:
        """As ``spark.master``: it begins with "local" if all tasks run on this machine."""
        ...

    def run(self, task: RangeTask, count: int) -> list[str]:
        """Run the task for ranges 0 to ``count`` - 1, and return what it said: for each range the lines of
        one attempt that ended without an error. Raises the error of a task that failed for good.
        """
        ...
