"""`ClassicProducer`: finds brokers, chooses partitions by key, and sends or queues events."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pyspark_kafkalog.classic.producer.async_producer import (
    AsyncProducer,
    CallbackHandler,
    EventHandler,
    QueueClosed,
    QueueFull,
    QueueItem,
    collated,
    message_of,
)
from pyspark_kafkalog.classic.producer.router import ENCODERS, Encoder, Partitioner, new_instance, router_of
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.client.retry import Deadline, RetryPolicy
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import ClassicProducerConfig, producer_config
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for
from pyspark_kafkalog.zookeeper.paths import BrokerNode

logger = logging.getLogger(__name__)

_ROUTE_ATTEMPTS = 5  # a broker may disappear after it was chosen; this many times in a row is no coincidence


class ProducerData(msgspec.Struct, frozen=True):
    """Events for one topic; ``key`` chooses the partition of all of them."""

    topic: str
    data: Sequence[Any]
    key: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, (list, tuple)):
            raise TypeError(f"data must be a list or tuple of events, not {type(self.data).__name__}")


class ClassicProducer:
    """*Thread-safe.* The first generation's producer, for the brokers of a cluster.

        with ClassicProducer({"zk.connect": "localhost:2181", "producer.type": "async"}) as producer:
            producer.send(ProducerData("clicks", [b"one", b"two"], key="user-7"))

    ``config``: see `ClassicProducerConfig`. The router reports changes of live brokers to the pool of
    channels, on ZooKeeper's thread. All brokers' queues share handler objects and call them from their
    threads.
    """

    def __init__(
        self,
        config: Mapping[str, object] | ClassicProducerConfig,
        *,
        encoder: Encoder | None = None,
        partitioner: Partitioner | None = None,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Looks up the brokers. Objects override classes in ``config``.

        Raises:
            InvalidConfig: a property is missing or not allowed, or a class cannot be found.
            ConnectionLost: ZooKeeper cannot be reached.
        """
        config = producer_config(ClassicProducerConfig, config)
        self.config: ClassicProducerConfig = config
        self._encoder: Encoder = encoder or new_instance(
            config.serializer_class, ENCODERS, "serializer.class"
        )
        self._event_handler, self._callbacks, self._clock = event_handler, callback_handler, clock
        self._closed = False
        self._pool = ProducerPool(self._channel, self._send_elsewhere)
        self._router = router_of(config, partitioner)
        try:
            self._router.start(self._pool.keep)
        except BaseException:
            self.close()
            raise

    @property
    def brokers(self) -> list[int]:
        """Sorted ids of the brokers with a channel."""
        return self._pool.brokers

    def send(self, *data: ProducerData | Sequence[ProducerData]) -> None:
        """Sends events, or queues them (``producer.type=async``).

        If a broker fails, the others still get their part; the first failure is raised.

        Raises:
            QueueClosed: the producer is closed.
            QueueFull: a queue had no room in time; that event and those after it were not accepted.
            TypeError: the encoder or partitioner does not accept an event or key.
            ConnectionLost: a broker is unreachable; unknown what it stored.
            KafkaError: another broker error, or no live broker.
        """
        if self._closed:
            raise QueueClosed("the producer is closed")
        rows = []
        for one in (one for given in data for one in ([given] if isinstance(given, ProducerData) else given)):
            broker, number = self._router.route(one.topic, one.key)
            rows += [(broker, QueueItem(event, one.topic, number, one.key)) for event in one.data]
        for _ in range(_ROUTE_ATTEMPTS):
            left = self._deliver(rows)
            if not left:
                return
            rows = [self._routed(item) for item in left]
        raise error_for(
            ErrorCode.BROKER_NOT_AVAILABLE, f"{len(rows)} event(s) were not sent: brokers come and go"
        )

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all queued events, also those of dead brokers, are sent or lost, and handled.

        Raises:
            TimeoutError: not within ``timeout`` seconds.
            ConnectionLost: with ``request.required.acks=0``, a broker refused something.
        """
        self._pool.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Sends queued events, up to ``timeout`` seconds per broker, and closes the connections.

        Raises `TimeoutError`: not all was sent in time.
        """
        self._closed = True
        try:
            self._pool.close(timeout)
        finally:
            self._router.close()

    def __enter__(self) -> ClassicProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _routed(self, item: QueueItem) -> tuple[BrokerNode, QueueItem]:
        route = self._router.route(item.topic, item.key)
        return route.broker, replace(item, partition=route.partition)

    def _deliver(self, rows: Sequence[tuple[BrokerNode, QueueItem]]) -> list[QueueItem]:
        parts: dict[BrokerNode, list[QueueItem]] = defaultdict(list)
        for broker, item in rows:
            parts[broker].append(item)
        left: list[QueueItem] = []
        failure: Exception | None = None
        for broker, items in parts.items():
            try:
                left += self._pool.channel(broker).deliver(items)
            except Exception as e:
                # Whatever the error, send the other brokers' parts.
                failure = failure or e
                if isinstance(e, KafkaError) and not isinstance(e, (QueueFull, QueueClosed)):
                    self._router.failed({item.topic for item in items})
        if failure is not None:
            if left:
                logger.error("%d event(s) were not sent: their broker is dead, and %s", len(left), failure)
            raise failure
        return left

    def _send_elsewhere(self, items: Sequence[QueueItem]) -> None:
        """Waits until another broker accepts a dead one's items; on a thread of the pool."""
        deadline = Deadline.after(self.config.socket_timeout_ms / 1000, self._clock)
        retry = RetryPolicy(self.config.retry_backoff_ms)
        logger.info("%d queued event(s) of a dead broker go to others", len(items))
        for place, item in enumerate(items):
            failures = 0
            while True:
                try:
                    if not self._deliver([self._routed(item)]):
                        break
                    failure: Exception = QueueClosed(f"{item.topic}: the newly chosen broker is dead as well")
                except Exception as e:
                    failure = e
                failures += 1
                if deadline.passed:
                    self._lost(items[place:], failure)
                    return
                self._clock.sleep(min(retry.backoff(failures), deadline.left))

    def _lost(self, items: Sequence[QueueItem], error: Exception) -> None:
        logger.error("%d event(s) of a dead broker are lost: %s", len(items), error)
        if self._callbacks is not None:
            try:
                self._callbacks.after_failure(items, error)
            except Exception:
                logger.exception("a callback handler failed")

    def _channel(self, broker: BrokerNode) -> Channel:
        host, port = broker.host, broker.port
        if self.config.producer_type == "sync":
            producer = SyncProducer(host, port, self.config, clock=self._clock)
            return SyncChannel(producer, self.config, self._encoder)
        return AsyncChannel(
            host,
            port,
            self.config,
            encoder=self._encoder,
            event_handler=self._event_handler,
            callback_handler=self._callbacks,
            clock=self._clock,
        )


class SyncChannel:
    """*Thread-safe.* Sends to one broker."""

    def __init__(self, producer: SyncProducer, config: ClassicProducerConfig, encoder: Encoder) -> None:
        self._producer, self._config, self._encoder = producer, config, encoder
        self._closed = False

    def deliver(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """Returns items refused because it is closed. Raises sending errors."""
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


class AsyncChannel(AsyncProducer):
    def deliver(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        for place, item in enumerate(items):
            try:
                self.enqueue(item)
            except QueueClosed:
                return items[place:]
        return []


Channel = SyncChannel | AsyncChannel


class ProducerPool:
    """*Thread-safe: its lock guards the channels by broker.* A dead broker's channel is closed on its own
    thread; its queued events go to ``send_elsewhere``.
    """

    def __init__(
        self, make: Callable[[BrokerNode], Channel], send_elsewhere: Callable[[Sequence[QueueItem]], object]
    ) -> None:
        self._make, self._send_elsewhere = make, send_elsewhere
        self._lock = threading.Lock()
        self._channels: dict[int, tuple[BrokerNode, Channel]] = {}
        self._retiring: list[tuple[threading.Thread, Channel]] = []
        self._closing = self._closed = False

    @property
    def brokers(self) -> list[int]:
        with self._lock:
            return sorted(self._channels)

    def channel(self, broker: BrokerNode) -> Channel:
        """Creates it if needed. Raises `QueueClosed` once the pool is closed."""
        with self._lock:
            return self._channel(broker)

    def keep(self, live: Mapping[int, BrokerNode]) -> None:
        with self._lock:
            if self._closing:
                return
            for id in self._channels.keys() - live.keys():
                self._give_up(id)
            for broker in live.values():
                self._channel(broker)

    def flush(self, timeout: float | None) -> None:
        """Moves dead brokers' events first. Raises `TimeoutError`."""
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
        """Each channel within ``timeout`` seconds; raises the first error after closing all."""
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
        """A retiring channel's events go to the others, so these wait for it."""
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
        """Except those waiting for this one. Caller holds the lock."""
        here = threading.current_thread()
        return [
            t for t, channel in self._retiring if t.is_alive() and t is not here and not channel.runs_here()
        ]

    def _channel(self, broker: BrokerNode) -> Channel:
        if self._closed:
            raise QueueClosed("the producer is closed")
        if broker.id in self._channels:
            before, channel = self._channels[broker.id]
            if (before.host, before.port) == (broker.host, broker.port):
                return channel
            # Either address may be outdated; do not leave events in that queue.
            self._give_up(broker.id)
        channel = self._make(broker)
        self._channels[broker.id] = (broker, channel)
        return channel

    def _give_up(self, id: int) -> None:
        """Closes the channel on its own thread. Caller holds the lock."""
        broker, channel = self._channels.pop(id)
        logger.info("%s is gone", broker)
        thread = threading.Thread(
            target=self._retire, args=(channel,), name=f"kafkalog-retiring-{id}", daemon=True
        )
        self._retiring = [*(one for one in self._retiring if one[0].is_alive()), (thread, channel)]
        thread.start()

    def _retire(self, channel: Channel) -> None:
        if left := channel.retire():
            self._send_elsewhere(left)
