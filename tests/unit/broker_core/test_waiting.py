"""The wait that no signal escapes, whenever it comes."""

from __future__ import annotations

import queue
import threading
from typing import Any

from kafkalog_broker.scheduler import next_of


class _Deaf(queue.SimpleQueue):  # type: ignore[type-arg]
    """A get that is not woken by what is put while it waits: as if the signal came just before it blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: list[Any] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            assert timeout is not None, "it would wait for ever"
            for handler in self.handlers:  # run once the wait is over
                handler()
            raise queue.Empty
        return super().get(block, timeout)


def test_a_reason_given_just_before_the_wait_begins_is_heard() -> None:
    reasons = _Deaf()
    reasons.handlers.append(lambda: reasons.put("signal"))
    assert next_of(reasons) == "signal"


def test_a_reason_from_another_thread_is_heard() -> None:
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Timer(0.05, reasons.put, ["orphaned"]).start()
    assert next_of(reasons) == "orphaned"
