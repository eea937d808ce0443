"""One producer per live broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyspark_kafkalog.classic.producer.async_producer import (
    AsyncProducer,
    QueueClosed,
    QueueItem,
    collated,
    message_of,
)
from pyspark_kafkalog.classic.producer.router import Encoder
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.config.classic_config import ClassicProducerConfig
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.zookeeper.paths import BrokerNode

logger = logging.getLogger(__name__)


class Channel(Protocol):
    """*Thread-safe.* Sends to one broker."""

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """Sends or queues events; returns those refused because it is closed. Raises sending errors."""
        ...

    def flush(self, timeout: float | None) -> None:
        """Returns when all queued events are sent or lost. Raises `TimeoutError`."""
        ...

    def close(self, timeout: float | None) -> None:
        """Sends queued events, then closes. Raises `TimeoutError`."""
        ...

    def retire(self) -> list[QueueItem]:
        """Closes at once; returns unsent events."""
        ...

    def runs_here(self) -> bool:
        """Whether this is the sending thread, which must not wait for its own end."""
        ...


class SyncChannel:
    def __init__(self, producer: SyncProducer, config: ClassicProducerConfig, encoder: Encoder) -> None:
        self._producer, self._config, self._encoder = producer, config, encoder
        self._closed = False

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        ready = [(item, message_of(item, self._encoder, self._config.protocol)) for item in items]
        if self._closed:
            return items
        self._producer.multi_send(collated(ready, self._config))
        return []

    def flush(self, timeout: float | None) -> None:  # noqa: ARG002  (bounded by socket.timeout.ms)
        self._producer.confirm()

    def close(self, timeout: float | None) -> None:  # noqa: ARG002
        self._closed = True
        self._producer.close()

    def retire(self) -> list[QueueItem]:
        self.close(None)
        return []

    def runs_here(self) -> bool:
        return False


class AsyncChannel:
    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        for place, item in enumerate(items):
            try:
                self._producer.enqueue(item)
            except QueueClosed:
                return items[place:]
        return []

    def flush(self, timeout: float | None) -> None:
        self._producer.flush(timeout)

    def close(self, timeout: float | None) -> None:
        self._producer.close(timeout)

    def retire(self) -> list[QueueItem]:
        return self._producer.retire()

    def runs_here(self) -> bool:
        return self._producer.runs_here()


class ProducerPool:
    """*Thread-safe: its lock guards the channels by broker.*

    A dead broker's channel is removed at once and closed on its own thread, as a request may run until its
    timeout. Its queued events go to ``send_elsewhere``.
    """

    def __init__(
        self,
        make: Callable[[BrokerNode], Channel],
        send_elsewhere: Callable[[Sequence[QueueItem]], object],
    ) -> None:
        self._make, self._send_elsewhere = make, send_elsewhere
        self._lock = threading.Lock()
        self._channels: dict[int, tuple[BrokerNode, Channel]] = {}
        self._retiring: list[tuple[threading.Thread, Channel]] = []
        self._closing = self._closed = False

    @property
    def brokers(self) -> list[int]:
        """Sorted ids of the brokers with a channel."""
        with self._lock:
            return sorted(self._channels)

    def channel(self, broker: BrokerNode) -> Channel:
        """The broker's channel; creates it if needed. Raises `QueueClosed` once the pool is closed."""
        with self._lock:
            return self._channel(broker)

    def keep(self, live: Mapping[int, BrokerNode]) -> None:
        """Keeps channels for exactly these brokers."""
        with self._lock:
            if self._closing:
                return
            for id in self._channels.keys() - live.keys():
                self._give_up(id)
            for broker in live.values():
                self._channel(broker)

    def flush(self, timeout: float | None) -> None:
        """Moves dead brokers' events, then flushes all channels. Raises `TimeoutError`."""
        deadline = Deadline.after(timeout) if timeout is not None else None
        while True:
            with self._lock:
                retiring, threads = self._retiring, self._retiring_threads()
                channels = [channel for _, channel in self._channels.values()]
            for thread in threads:
                thread.join(deadline.left if deadline is not None else None)
                if thread.is_alive():
                    raise TimeoutError(
                        "events queued for a dead broker have not been moved to another one yet"
                    )
            if threads:
                continue
            for channel in channels:
                channel.flush(deadline.left if deadline is not None else None)
            with self._lock:
                if self._retiring is retiring:
                    return

    def close(self, timeout: float | None) -> None:
        """Waits for retiring channels, then closes all, each within ``timeout`` seconds.

        Raises the first `TimeoutError` or `KafkaError`, after closing all.
        """
        channels = self._closed_after_retiring(Deadline.after(timeout) if timeout is not None else None)
        failure: Exception | None = None
        for channel in channels:
            try:
                channel.close(timeout)
            except (TimeoutError, KafkaError) as e:
                failure = failure or e
        if failure is not None:
            raise failure

    def _closed_after_retiring(self, deadline: Deadline | None) -> list[Channel]:
        """Removes the channels once none is retiring, as they take over its events."""
        while True:
            with self._lock:
                self._closing = True
                # A retiring one may have retired another whose broker moved.
                threads = self._retiring_threads()
                if not threads or (deadline is not None and deadline.passed):
                    self._closed = True
                    channels = [channel for _, channel in self._channels.values()]
                    self._channels.clear()
                    return channels
            for thread in threads:
                thread.join(deadline.left if deadline is not None else None)

    def _retiring_threads(self) -> list[threading.Thread]:
        """Threads of retiring channels, except those waiting for this one. Caller holds the lock."""
        here = threading.current_thread()
        return [
            t for t, channel in self._retiring if t.is_alive() and t is not here and not channel.runs_here()
        ]

    def _channel(self, broker: BrokerNode) -> Channel:
        if self._closed:
            raise QueueClosed("the producer is closed")
        known = self._channels.get(broker.id)
        if known is not None and not _same_address(known[0], broker):
            # Either address may be outdated; do not leave events in that queue.
            self._give_up(broker.id)
            known = None
        if known is None:
            known = self._channels[broker.id] = (broker, self._make(broker))
        return known[1]

    def _give_up(self, id: int) -> None:
        """Removes a channel and closes it on its own thread. Caller holds the lock."""
        broker, channel = self._channels.pop(id)
        logger.info("%s is gone", broker)
        thread = threading.Thread(
            target=self._retire, args=(channel,), name=f"kafkalog-retiring-{id}", daemon=True
        )
        self._retiring = [*(one for one in self._retiring if one[0].is_alive()), (thread, channel)]
        thread.start()

    def _retire(self, channel: Channel) -> None:
        left = channel.retire()
        if left:
            self._send_elsewhere(left)


def _same_address(one: BrokerNode, other: BrokerNode) -> bool:
    return (one.host, one.port) == (other.host, other.port)
