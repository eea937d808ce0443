"""Where delivery callbacks run: a thread of their own, so that a slow one does not hold up sending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.producer.batch import ProducerBatch
from pyspark_kafkalog.producer.delivery import metadata_of

logger = logging.getLogger(__name__)


class CallbackRunner:
    """*Thread-safe.* Runs callbacks one after the other, in the order in which batches were settled.

    Owns its thread, which starts with the first callback. An exception in a callback is logged and the next
    one is called.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[ProducerBatch | None] = SimpleQueue()
        self._idle = threading.Condition(threading.Lock())
        self._left = 0
        self._thread: threading.Thread | None = None

    def submit(self, batch: ProducerBatch) -> None:
        """Have the callbacks of a settled batch called. Returns at once."""
        with self._idle:
            self._left += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafkalog-producer-callbacks", daemon=True
                )
                self._thread.start()
        self._queue.put(batch)

    def wait(self, deadline: Deadline | None) -> bool:
        """Return when every callback submitted was called, or at ``deadline``; True in the first case.

        A callback that waits for its own end would wait for ever: on the callbacks' own thread it
        returns at once.
        """
        if threading.current_thread() is self._thread:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._left == 0, deadline.left if deadline else None)

    def stop(self, deadline: Deadline | None) -> None:
        """Call what was submitted, then end the thread; wait for that until ``deadline``."""
        with self._idle:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        if thread is not threading.current_thread():
            thread.join(deadline.left if deadline else None)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for index, call in batch.callbacks:
                if batch.error is None:
                    _call(call, metadata_of(batch, index), None)
                else:
                    _call(call, None, batch.error)
            for watcher in batch.watchers:
                _call(watcher)
            batch.callbacks, batch.watchers = [], []
            with self._idle:
                self._left -= 1
                self._idle.notify_all()


def _call(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except BaseException:
        # Even SystemExit: it would end this thread and lose the callbacks that follow.
        logger.exception("a delivery callback failed")
