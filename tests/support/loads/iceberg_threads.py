"""The threads that pyiceberg leaves running."""

from __future__ import annotations

from pyiceberg.utils.concurrent import ExecutorFactory


def end_threads() -> None:
    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None
