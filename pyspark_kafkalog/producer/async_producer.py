"""The producer of one broker that queues what it sends: batches leave by number and by time."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer07 import AsyncProducerConfig, handler_props, producer_config
from pyspark_kafkalog.producer.event_handler import CallbackHandler, DefaultEventHandler, EventHandler
from pyspark_kafkalog.producer.event_queue import EventQueue, QueueFull, QueueItem
from pyspark_kafkalog.producer.message_encoder import ENCODERS, Encoder, made
from pyspark_kafkalog.producer.sync_producer import SyncProducer
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION

logger = logging.getLogger(__name__)

_open_producers: weakref.WeakSet[AsyncProducer] = weakref.WeakSet()


class AsyncProducer:
    """*Thread-safe.* Queues events for one broker; a thread of its own sends them in batches.

    A batch leaves when it has ``batch.size`` events or ``queue.time`` has passed since the last one. A full
    queue refuses events, at once or after ``queue.enqueueTimeout.ms``. The thread owns the batch that is
    being gathered, the event handler and its `SyncProducer`; the queue has its own lock.

        with AsyncProducer("localhost", 9093, {"queue.time": 100}) as producer:
            producer.send("clicks", b"one")
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Mapping[str, object] | AsyncProducerConfig | None = None,
        *,
        encoder: Encoder | None = None,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start the thread; nothing is connected before the first batch. Objects go before classes by name.

        Raises:
            InvalidConfig: a property that is not allowed, or a class that cannot be found.
        """
        config = producer_config(AsyncProducerConfig, config)
        self.config: AsyncProducerConfig = config
        self.lost_count = 0
        """Events that were taken and could not be sent. Written by the thread only."""
        self._producer = SyncProducer(host, port, config, clock=clock)
        self._encoder = encoder or made(config.serializer_class, ENCODERS, "serializer.class")
        if callback_handler is None and config.callback_handler is not None:
            callback_handler = made(config.callback_handler, {}, "callback.handler")
        if event_handler is None and config.event_handler is not None:
            event_handler = made(config.event_handler, {}, "event.handler")
        self._callbacks = callback_handler
        self._handler = event_handler or DefaultEventHandler(
            config, self._lost, callback_handler, clock=clock
        )
        if callback_handler is not None:
            callback_handler.init(handler_props(config.callback_handler_props))
        self._handler.init(handler_props(config.event_handler_props))
        self._queue = EventQueue(config.queue_size, clock=clock)
        self._clock = clock
        self._retired: list[QueueItem] | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalog-async-producer-{self._producer.peer}", daemon=True
        )
        self._thread.start()
        _open_producers.add(self)

    def send(self, topic: str, event: Any, partition: int = ANY_PARTITION, key: Any = None) -> None:
        """Queue one event.

        Raises:
            QueueFull: there was no room in time; the event was not taken.
            QueueClosed: the producer is closed; the event was not taken.
        """
        self.enqueue(QueueItem(event, topic, partition, key))

    def enqueue(self, item: QueueItem) -> None:
        """Queue one event. Raises as `send`."""
        if self._callbacks is not None:
            item = self._callbacks.before_enqueue(item)
        added = False
        try:
            added = self._queue.put(item, self.config.enqueue_timeout_ms)
        finally:
            if self._callbacks is not None:
                self._callbacks.after_enqueue(item, added)
        if not added:
            raise QueueFull(
                f"{item.topic}: {len(self._queue)} events wait for {self._producer.peer}: queue.size is "
                f"{self.config.queue_size}, queue.enqueueTimeout.ms {self.config.enqueue_timeout_ms}"
            )

    def flush(self, timeout: float | None = None) -> None:
        """Send what is queued without waiting for full batches; return when all of it was sent or is lost.

        Raises:
            TimeoutError: not all of it within ``timeout`` seconds.
        """
        if self.runs_here():
            return  # A hook that waited for its own end would wait for ever.
        deadline = Deadline.after(timeout, self._clock) if timeout is not None else None
        if not self._queue.flush(deadline):
            raise TimeoutError(
                f"{self._producer.peer}: {len(self._queue)} events and a batch are not sent yet"
            )

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, at most for ``timeout`` seconds, and end the thread. A second call does nothing.

        Raises:
            TimeoutError: not all was sent in time; the thread goes on.
        """
        self._queue.close()
        self._join(timeout)

    def retire(self) -> list[QueueItem]:
        """Close without sending any more; what was not sent is given back.

        A batch that is on its way now is waited for, and given back if it fails.
        """
        self._retired = []
        left = self._queue.withdraw()
        self._join(None)
        return [*self._retired, *left]

    def runs_here(self) -> bool:
        """Whether this is the thread that sends: hooks are called by it."""
        return threading.current_thread() is self._thread

    def __enter__(self) -> AsyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, timeout: float | None) -> None:
        _open_producers.discard(self)
        if not self.runs_here():
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(
                    f"{self._producer.peer}: {len(self._queue)} events and a batch are not sent yet"
                )

    def _run(self) -> None:
        """The thread: gather, hand over, until the queue is closed and empty."""
        for events, last in self._queue.batches(self.config.queue_time_ms / 1000, self._gather):
            if last and self._retired is None:
                events.extend(self._hooked([], lambda callbacks: callbacks.last_batch_before_close()))
            self._handle(events)
        self._close_hooks()

    def _gather(self, events: list[QueueItem], item: QueueItem) -> bool:
        events += self._hooked([item], lambda callbacks: callbacks.after_dequeuing_existing_data(item))
        return len(events) >= self.config.batch_size

    def _handle(self, events: Sequence[QueueItem]) -> None:
        if events and self._retired is not None:
            self._retired += events
        elif events:
            try:
                self._handler.handle(events, self._producer, self._encoder)
            except Exception as e:
                self._lost(events, e)
        self._queue.settle()

    def _lost(self, events: Sequence[QueueItem], error: Exception) -> None:
        if self._retired is not None:
            self._retired += events
            return
        self.lost_count += len(events)
        logger.error("%s: %d event(s) are lost: %s", self._producer.peer, len(events), error)
        self._hooked([], lambda callbacks: callbacks.after_failure(events, error))

    def _hooked(
        self, otherwise: Sequence[QueueItem], call: Callable[[CallbackHandler], Sequence[QueueItem] | None]
    ) -> Sequence[QueueItem]:
        """What a hook returns; ``otherwise`` where there is none or it fails, which is logged."""
        if self._callbacks is None:
            return otherwise
        try:
            return call(self._callbacks) or []
        except Exception:
            logger.exception("%s: a callback handler failed", self._producer.peer)
            return otherwise

    def _close_hooks(self) -> None:
        for close in (
            self._callbacks.close if self._callbacks else None,
            self._handler.close,
            self._producer.close,
        ):
            try:
                if close is not None:
                    close()
            except Exception:
                logger.exception("%s: closing failed", self._producer.peer)


def _close_at_exit() -> None:
    """A program may end without closing its producer; what it sent is delivered all the same."""
    for producer in list(_open_producers):
        logger.warning("an asynchronous producer was not closed; sending what is left")
        producer.close()


atexit.register(_close_at_exit)
