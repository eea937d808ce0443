"""Work that was queued before a wake-up is always seen after it."""

from __future__ import annotations

import select
import threading
from collections import deque

from kafkalog_broker.network.processor import Wakeup


def readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_many_wakeups_are_one_and_clear_forgets_them() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup)
    for _ in range(100_000):
        wakeup.wake()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.wake()
    assert readable(wakeup)
    wakeup.close()


def test_clear_without_a_wakeup_does_not_block() -> None:
    wakeup = Wakeup()
    wakeup.clear()
    wakeup.clear()
    wakeup.close()


def test_a_wakeup_after_close_does_nothing() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.wake()
    wakeup.close()


def test_no_wakeup_is_lost_between_two_threads() -> None:
    wakeup, queue, total = Wakeup(), deque(), 20_000
    writers = [threading.Thread(target=_write, args=(wakeup, queue, total)) for _ in range(2)]
    for t in writers:
        t.start()
    seen = 0
    while seen < 2 * total:
        ready = select.select([wakeup], [], [], 60)[0]
        assert ready, f"waited in vain with {len(queue)} items queued after {seen}"
        wakeup.clear()
        while queue:
            queue.popleft()
            seen += 1
    for t in writers:
        t.join()
    wakeup.close()


def _write(wakeup: Wakeup, queue: deque[int], count: int) -> None:
    for i in range(count):
        queue.append(i)
        wakeup.wake()
