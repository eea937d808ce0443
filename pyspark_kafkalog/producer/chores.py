"""Work that waits, done beside the sender's loop, which must not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from pyspark_kafkalog.errors import KafkaError

logger = logging.getLogger(__name__)

Done = Callable[[Any, "KafkaError | None"], object]
"""Called with a chore's result, or with None and its failure."""


class Chores:
    """*Owned by the sender's thread.* Each chore has a short-lived thread of its own; what comes of it is
    handed back to the owner in `collect`. ``wake`` tells the owner that there is something to collect.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._finished: SimpleQueue[tuple[str, Done, Any, KafkaError | None]] = SimpleQueue()
        self._running: set[str] = set()
        self._closed = False

    def start(self, name: str, work: Callable[[], Any], done: Done) -> None:
        """Do ``work`` unless a chore of this name is running; ``done`` is called from a later `collect`."""
        if name in self._running:
            return
        self._running.add(name)
        thread = threading.Thread(
            target=self._run, args=(name, work, done), name=f"kafkalog-producer-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending and starts no more threads: do it here and now.
            self._run(name, work, done)

    def collect(self) -> None:
        """Call ``done`` for each chore that is finished."""
        while True:
            try:
                name, done, result, error = self._finished.get_nowait()
            except Empty:
                return
            self._running.discard(name)
            done(result, error)

    def close(self) -> None:
        """Nobody will collect any more: what is finished, or will be, is closed if it can be."""
        self._closed = True
        self._dispose()

    def _dispose(self) -> None:
        while True:
            try:
                _, _, result, _ = self._finished.get_nowait()
            except Empty:
                return
            if hasattr(result, "close"):
                result.close()

    def _run(self, name: str, work: Callable[[], Any], done: Done) -> None:
        result, error = None, None
        try:
            result = work()
        except KafkaError as e:
            error = e
        except Exception as e:
            logger.exception("%s failed", name)
            error = KafkaError(f"{name}: {e!r}")
        self._finished.put((name, done, result, error))
        if self._closed:
            self._dispose()
        self._wake()
