"""The pool: a channel to each live broker, by its address, and what becomes of those that go."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

import pytest

from pyspark_kafkalog.classic.producer.async_producer import QueueClosed, QueueItem
from pyspark_kafkalog.classic.producer.classic_producer import AsyncChannel, ProducerPool
from pyspark_kafkalog.zookeeper.paths import BrokerNode

ITEMS = [QueueItem(n, "t") for n in range(3)]


class Channel:
    """Remembers what it was told; has ``left`` unsent when it is retired."""

    def __init__(self, broker: BrokerNode, left: Sequence[QueueItem] = ()) -> None:
        self.broker, self.left = broker, list(left)
        self.closed = self.retired = self.flushed = 0

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        return []

    def flush(self, timeout: float | None) -> None:
        self.flushed += 1

    def runs_here(self) -> bool:
        return False

    def close(self, timeout: float | None) -> None:
        self.closed += 1
        if self.broker.host == "slow":
            raise TimeoutError("not in time")

    def retire(self) -> list[QueueItem]:
        self.retired += 1
        return self.left


def node(id: int, host: str = "h", since_ms: int = 1) -> BrokerNode:
    return BrokerNode(id, host, 9, since_ms)


class Made:
    """A pool and what it has made."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.elsewhere: list[QueueItem] = []
        self.handed_over = threading.Event()
        self.pool = ProducerPool(self._make, self._send_elsewhere)

    def _make(self, broker: BrokerNode) -> Channel:
        self.channels.append(Channel(broker, ITEMS if broker.host == "full" else ()))
        return self.channels[-1]

    def _send_elsewhere(self, items: Sequence[QueueItem]) -> None:
        self.elsewhere += items
        self.handed_over.set()


def test_each_live_broker_has_one_channel() -> None:
    made = Made()
    made.pool.keep({1: node(1), 2: node(2)})
    assert made.pool.brokers == [1, 2]
    assert made.pool.channel(node(1)) is made.channels[0]
    assert made.pool.channel(node(3)) is made.channels[2]
    made.pool.keep({1: node(1, since_ms=99), 2: node(2), 3: node(3)})
    assert len(made.channels) == 3, "the same places, though one has registered anew"


def test_a_broker_at_another_address_has_another_channel() -> None:
    made = Made()
    made.pool.keep({1: node(1, "old")})
    assert made.pool.channel(node(1, "new")) is made.channels[1]
    made.pool.keep({1: node(1, "newest")})
    assert [channel.broker.host for channel in made.channels] == ["old", "new", "newest"]
    made.pool.close(60)
    assert [channel.retired for channel in made.channels] == [1, 1, 0]


@pytest.mark.parametrize("becomes", ["moved", "gone"])
def test_what_a_broker_that_is_gone_or_has_moved_had_queued_is_handed_over(becomes: str) -> None:
    made = Made()
    made.pool.keep({1: node(1, "full"), 2: node(2)})
    if becomes == "moved":
        made.pool.channel(node(1, "new"))
    else:
        made.pool.keep({2: node(2)})
    assert made.handed_over.wait(60)
    assert made.elsewhere == ITEMS
    assert made.pool.brokers == ([1, 2] if becomes == "moved" else [2])
    assert [channel.retired for channel in made.channels][:2] == [1, 0]


def test_closing_closes_all_of_them_whatever_one_says() -> None:
    made = Made()
    made.pool.keep({1: node(1, "slow"), 2: node(2)})
    with pytest.raises(TimeoutError, match="not in time"):
        made.pool.close(1)
    assert [channel.closed for channel in made.channels] == [1, 1]
    with pytest.raises(QueueClosed):
        made.pool.channel(node(1))
    made.pool.keep({5: node(5)})
    assert made.pool.brokers == []


def test_a_queue_that_is_closed_gives_back_what_it_did_not_take() -> None:
    channel = AsyncChannel("nowhere.invalid", 9)
    channel.close()
    assert channel.deliver(ITEMS) == ITEMS


def test_closing_waits_for_those_that_are_found_gone_meanwhile() -> None:
    closing = threading.Event()
    arrived: list[QueueItem] = []
    calls = itertools.count()

    def send_elsewhere(items: Sequence[QueueItem]) -> None:
        closing.wait(60)
        if next(calls) == 0:
            pool.channel(node(2, "new"))  # so broker 2 has moved, and what waits for it is handed over too
        else:
            time.sleep(0.2)  # long enough for a pool that does not wait
            pool.channel(node(3))  # which is possible as long as somebody hands over
        arrived.extend(items)

    def make(broker: BrokerNode) -> Channel:
        return Channel(broker, ITEMS if broker.host == "full" else ())

    pool = ProducerPool(make, send_elsewhere)
    pool.keep({1: node(1, "full"), 2: node(2, "full")})
    pool.keep({2: node(2, "full")})
    threading.Timer(0.05, closing.set).start()
    pool.close(60)
    assert arrived == [*ITEMS, *ITEMS]


def test_flushing_waits_for_what_is_moved_off_a_broker_that_is_gone_and_then_for_those_it_went_to() -> None:
    moving, may_arrive = threading.Event(), threading.Event()
    made: list[Channel] = []
    flushed_before: list[int] = []

    def send_elsewhere(items: Sequence[QueueItem]) -> None:
        moving.set()
        assert may_arrive.wait(60)
        flushed_before.append(made[1].flushed)

    def make(broker: BrokerNode) -> Channel:
        made.append(Channel(broker, ITEMS if broker.host == "full" else ()))
        return made[-1]

    pool = ProducerPool(make, send_elsewhere)
    pool.keep({1: node(1, "full"), 2: node(2)})
    pool.keep({2: node(2)})
    assert moving.wait(60)
    with pytest.raises(TimeoutError, match="a dead broker have not been moved to another one yet"):
        pool.flush(0.05)
    threading.Timer(0.05, may_arrive.set).start()
    pool.flush(60)
    assert (flushed_before, made[1].flushed) == ([0], 1)
    pool.close(60)


def test_flushing_begins_again_when_a_broker_goes_meanwhile() -> None:
    """What waited there may have gone to one that was flushed before."""
    arrived: list[QueueItem] = []

    class Going(Channel):
        def flush(self, timeout: float | None) -> None:
            super().flush(timeout)
            if self.broker.id == 2 and self.flushed == 1:
                pool.keep({1: node(1)})

    made: list[Going] = []

    def make(broker: BrokerNode) -> Channel:
        made.append(Going(broker, ITEMS if broker.id == 2 else ()))
        return made[-1]

    pool = ProducerPool(make, arrived.extend)
    pool.keep({1: node(1), 2: node(2)})
    pool.flush(60)
    assert arrived == ITEMS
    assert [channel.flushed for channel in made] == [2, 1]


def test_a_hook_of_a_broker_that_is_gone_may_flush_without_waiting_for_itself() -> None:
    class Here(Channel):
        def runs_here(self) -> bool:
            return threading.current_thread() is sender

        def retire(self) -> list[QueueItem]:
            sender.join(60)
            return super().retire()

    pool = ProducerPool(Here, lambda items: None)
    pool.keep({1: node(1)})
    sender = threading.Thread(target=lambda: (may_flush.wait(60), pool.flush(None)))
    may_flush = threading.Event()
    sender.start()
    pool.keep({})
    may_flush.set()
    sender.join(60)
    assert not sender.is_alive()
