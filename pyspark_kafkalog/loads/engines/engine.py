"""The interface of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

Tell = Callable[[int], None]
"""Called by a task with how far it is: offsets of its range."""


def tell_nobody(offsets: int) -> None:
    """A `Tell` where nobody shows progress."""


RangeTask = Callable[[int, Tell], Iterable[str]]
"""Does the work of range number N, and says in lines of text what it did. Pickled with cloudpickle."""


class Engine(Protocol):
    """*Belongs to one driver.*"""

    @property
    def master(self) -> str:
        """As ``spark.master``: it begins with "local" if all tasks run on this machine."""
        ...

    def ready(self, count: int, offsets: int) -> AbstractContextManager[None]:
        """Make runs quick until the context ends: they will be of ``count`` ranges with so many offsets."""
        ...

    def run(self, task: RangeTask, count: int) -> list[str]:
        """Run the task for ranges 0 to ``count`` - 1, and return what it said: for each range the lines of
        one attempt that ended without an error. Raises the error of a task that failed for good.
        """
        ...

    def progress(self) -> int | None:
        """Offsets that the tasks of this run have read; None if that is not known. *Thread-safe.*"""
        ...
