"""Which engine decodes: the compiled one where it pays and can be had, plain Python elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from pyspark_kafkalog.columnar.engine import Engine
from pyspark_kafkalog.columnar.kernel_cache import KernelName, kernel
from pyspark_kafkalog.columnar.plain import PlainEngine
from pyspark_kafkalog.errors import InvalidConfig

EngineName = Literal["auto", "numba", "plain"]

WARM_UP_RECORDS = 200_000
"""What ``auto`` decodes in plain Python before it loads numba: importing it and loading the kernel takes
some 0.4 s, and plain Python decodes about so many records in half of that. Small reads thus start at once."""

_PLAIN = PlainEngine()

_E = TypeVar("_E")


def compiled_engine() -> Engine | None:
    """The engine over the compiled kernels; None where there is none."""
    found, _ = kernel()
    if found is None:
        return None
    from pyspark_kafkalog.columnar.arena import CompiledEngine

    return CompiledEngine(found, _PLAIN)


class Choice(Generic[_E]):
    """Which of a generation's two engines decodes in this process.

    *Thread-safe: the lock guards `_records` and `_compiled`.* One per process and generation: what it counts
    is this process's work.
    """

    def __init__(self, plain: _E, compiled: Callable[[], _E | None], kernel_name: KernelName) -> None:
        """``compiled`` makes the other engine, or gives None where there is no kernel of this name."""
        self._plain, self._make, self._kernel_name = plain, compiled, kernel_name
        self._lock = threading.Lock()
        self._records = 0
        self._compiled: _E | None = None

    def chooser(self, name: EngineName) -> Callable[[], _E]:
        """What gives the engine of this name, to be asked before each answer.

        Raises:
            InvalidConfig: there is none of this name, or it cannot be had here.
        """
        if name == "auto":
            return self.engine
        if name == "plain":
            return lambda: self._plain
        if name != "numba":
            raise InvalidConfig(f"unknown engine {name!r}; allowed: auto, numba, plain")
        engine = self._make()
        if engine is None:
            raise InvalidConfig(f"the engine numba cannot be had here: {kernel(self._kernel_name)[1]}")
        found: _E = engine
        return lambda: found

    def engine(self) -> _E:
        """The engine for the next answer, where nothing else is said."""
        with self._lock:
            if self._compiled is None:
                if self._records < WARM_UP_RECORDS:
                    return self._plain
                self._compiled = self._make() or self._plain
            return self._compiled

    def decoded(self, records: int) -> None:
        """Note that so many records were decoded, by whichever engine."""
        with self._lock:
            self._records += records


_automatic: Choice[Engine] = Choice(_PLAIN, compiled_engine, "fill_columns")


def decoded(records: int) -> None:
    """Note that so many records of v2 batches were decoded in this process, by whichever engine."""
    _automatic.decoded(records)


def chooser(name: EngineName) -> Callable[[], Engine]:
    """What gives the engine of this name for v2 batches; as `Choice.chooser`."""
    return _automatic.chooser(name)
