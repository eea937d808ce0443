"""Which engine decodes: the compiled one where it pays and can be had, plain Python elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from pyspark_kafkalog.columnar.engine import Engine
from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.columnar.plain import PlainEngine
from pyspark_kafkalog.errors import InvalidConfig

EngineName = Literal["auto", "numba", "plain"]

WARM_UP_RECORDS = 200_000
"""What ``auto`` decodes in plain Python before it loads numba: importing it and loading the kernel takes
some 0.4 s, and plain Python decodes about so many records in half of that. Small reads thus start at once."""

_PLAIN = PlainEngine()


def compiled_engine() -> Engine | None:
    """The engine over the compiled kernel; None where there is none."""
    found, _ = kernel()
    if found is None:
        return None
    from pyspark_kafkalog.columnar.arena import CompiledEngine

    return CompiledEngine(found)


class _Automatic:
    """*Thread-safe: the lock guards both fields.* One per process: what it counts is this process's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records = 0
        self._compiled: Engine | None = None

    def engine(self) -> Engine:
        """The engine for the next answer."""
        with self._lock:
            if self._compiled is None:
                if self._records < WARM_UP_RECORDS:
                    return _PLAIN
                self._compiled = compiled_engine() or _PLAIN
            return self._compiled

    def count(self, records: int) -> None:
        """Note what was decoded."""
        with self._lock:
            self._records += records


_automatic = _Automatic()


def decoded(records: int) -> None:
    """Note that so many records were decoded in this process, by whichever engine."""
    _automatic.count(records)


def chooser(name: EngineName) -> Callable[[], Engine]:
    """What gives the engine of this name, to be asked before each answer.

    Raises:
        InvalidConfig: there is none of this name, or it cannot be had here.
    """
    if name == "auto":
        return _automatic.engine
    if name == "plain":
        return lambda: _PLAIN
    if name != "numba":
        raise InvalidConfig(f"unknown engine {name!r}; allowed: auto, numba, plain")
    engine = compiled_engine()
    if engine is None:
        raise InvalidConfig(f"the engine numba cannot be had here: {kernel()[1]}")
    return lambda: engine
