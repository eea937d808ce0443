"""`AsyncProducer`: queues events for one broker; a thread sends them in batches."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pyspark_kafkalog.classic.producer.router import ENCODERS, Encoder, key_bytes, new_instance
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import AsyncProducerConfig, handler_props, producer_config
from pyspark_kafkalog.errors import InvalidRecord, InvalidTopic, KafkaError, MessageTooLarge
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.types import PROTOCOL_07, NewRecord

logger = logging.getLogger(__name__)

_LONGEST_SECONDS = 24 * 3600.0


class QueueFull(KafkaError):
    """The queue had no room in time; the event was not accepted."""


class QueueClosed(KafkaError):
    """The producer is closed; the event was not accepted."""


class QueueItem(msgspec.Struct, frozen=True):
    data: Any
    topic: str
    partition: int = ANY_PARTITION
    key: Any = None


class EventQueue:
    """*Thread-safe.* Its condition guards all of it; many threads put, one takes."""

    def __init__(self, limit: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._limit, self._clock = limit, clock
        self._changed = threading.Condition()
        self._items: deque[QueueItem] = deque()
        self._put = self._taken = self._settled = 0
        self._wanted = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: QueueItem, timeout_ms: int) -> bool:
        """False if there is no room within ``timeout_ms``; 0 does not wait, negative has no limit."""
        deadline = Deadline.after(timeout_ms / 1000, self._clock)
        with self._changed:
            while len(self._items) >= self._limit and not self._closed:
                if timeout_ms >= 0 and deadline.passed:
                    return False
                self._changed.wait(deadline.left if timeout_ms >= 0 else None)
            if self._closed:
                raise QueueClosed(f"{item.topic}: the producer is closed; the event was not accepted")
            self._items.append(item)
            self._put += 1
            self._changed.notify_all()
            return True

    def take(self, due: Deadline) -> QueueItem | None:
        """The next event; None at ``due``, or earlier if the queue is empty and `flush` waits."""
        with self._changed:
            while not self._items:
                if self._closed:
                    raise QueueClosed("the queue is closed")
                if due.passed or self._wanted > self._settled:
                    return None
                self._changed.wait(due.left)
            self._taken += 1
            self._changed.notify_all()
            return self._items.popleft()

    def batches(
        self, seconds: float, add: Callable[[list[QueueItem], QueueItem], bool]
    ) -> Iterator[tuple[list[QueueItem], bool]]:
        """Yields (batch, is last) until the queue is closed and empty; ``add`` returns whether it is full.

        A batch also ends ``seconds`` after the previous one and when `flush` waits; it may be empty.
        """
        batch: list[QueueItem] = []
        due = Deadline.after(seconds, self._clock)
        while True:
            try:
                item = self.take(due)
            except QueueClosed:
                break
            if item is None or add(batch, item):
                yield batch, False
                batch, due = [], Deadline.after(seconds, self._clock)
        yield batch, True

    def settle(self) -> None:
        with self._changed:
            self._settled = self._taken
            self._changed.notify_all()

    def flush(self, deadline: Deadline | None) -> bool:
        """False at ``deadline``."""
        with self._changed:
            target = self._put
            self._wanted = max(self._wanted, target)
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: self._settled >= target, deadline.left if deadline is not None else None
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def withdraw(self) -> list[QueueItem]:
        with self._changed:
            self._closed = True
            items = list(self._items)
            self._items.clear()
            self._taken += len(items)
            self._changed.notify_all()
            return items


Lost: TypeAlias = Callable[[Sequence[QueueItem], Exception], None]
"""Called with events that will not be sent, and the error."""


class CallbackHandler:
    """Base class of hooks into the queue; each does nothing unless overridden.

    Sending threads call ``before_enqueue`` and ``after_enqueue``, whose errors reach the sender. The
    producer's thread calls the others, one at a time; their errors are logged and the events continue
    unchanged.
    """

    def init(self, props: Mapping[str, str]) -> None:
        """Called once, with ``callback.handler.props``."""

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        """Returns the item to queue."""
        return item

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        """``added`` is False if the queue had no room."""

    def after_dequeuing_existing_data(self, item: QueueItem) -> Sequence[QueueItem]:
        """Returns any number of items to add to the batch instead of ``item``."""
        return [item]

    def before_sending_data(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """Returns the batch to send. Called by `DefaultEventHandler`."""
        return items

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        """Returns items to add to the last batch."""
        return []

    def after_failure(self, items: Sequence[QueueItem], error: Exception) -> None:
        """``items`` are lost. Not one of 0.7's hooks, which only logged this."""

    def close(self) -> None:
        """The last call."""


class EventHandler:
    """Base class of handlers of batches; always called by the same thread."""

    def init(self, props: Mapping[str, str]) -> None:
        """Called once, with ``event.handler.props``."""

    def handle(self, events: Sequence[QueueItem], producer: SyncProducer, encoder: Encoder) -> None:
        """Serialises and sends one or more ``events``; if it raises, they are lost."""
        raise NotImplementedError

    def close(self) -> None:
        """The last call."""


class DefaultEventHandler(EventHandler):
    """*Lives on its producer's thread.* Serialises a batch, compresses it by topic and partition, sends it.

    Retries up to ``num.retries`` times. If an event cannot be sent at all, halves the batch until it is
    found, so that the others are sent.
    """

    def __init__(
        self,
        config: AsyncProducerConfig,
        lost: Lost,
        callbacks: CallbackHandler,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._lost, self._callbacks, self._clock = config, lost, callbacks, clock
        backoff_ms = config.retry_backoff_ms
        self._retry = RetryPolicy(backoff_ms, 10 * backoff_ms, config.num_retries, patient=True)

    def handle(self, events: Sequence[QueueItem], producer: SyncProducer, encoder: Encoder) -> None:
        """Reports lost events instead of raising."""
        try:
            events = self._callbacks.before_sending_data(events)
        except Exception:
            logger.exception("%s: a callback handler failed", producer.peer)
        ready = []
        for event in events:
            try:
                ready.append((event, message_of(event, encoder, self._config.protocol)))
            except Exception as e:
                self._lost([event], e)
        self._send(ready, producer)

    def _send(self, ready: Sequence[tuple[QueueItem, bytes | NewRecord]], producer: SyncProducer) -> None:
        if not ready:
            return
        attempts = Attempts(
            self._retry,
            Deadline.after(_LONGEST_SECONDS, self._clock),
            doing=f"{producer.peer}: sending {len(ready)} events",
            clock=self._clock,
        )
        while True:
            try:
                producer.multi_send(collated(ready, self._config))
                return
            except (MessageTooLarge, InvalidRecord, InvalidTopic) as e:
                if len(ready) == 1:
                    self._lost([ready[0][0]], e)
                    return
                half = len(ready) // 2
                self._send(ready[:half], producer)
                self._send(ready[half:], producer)
                return
            except KafkaError as e:
                try:
                    attempts.failed(e)
                except KafkaError as final:
                    self._lost([event for event, _ in ready], final)
                    return


def message_of(event: QueueItem, encoder: Encoder, protocol: str) -> bytes | NewRecord:
    """With its key if the wire has keys. Raises the encoder's errors."""
    payload = encoder.to_message(event.data)
    if protocol == PROTOCOL_07 or event.key is None:
        return payload
    return NewRecord(payload, key_bytes(event.key))


def collated(
    ready: Sequence[tuple[QueueItem, bytes | NewRecord]], config: AsyncProducerConfig
) -> list[ProducerRequest]:
    sets: dict[tuple[str, int], list[bytes | NewRecord]] = defaultdict(list)
    for event, message in ready:
        sets[event.topic, event.partition].append(message)
    return [
        ProducerRequest(topic, messages, partition, config.codec_of(topic))
        for (topic, partition), messages in sets.items()
    ]


_open_producers: weakref.WeakSet[AsyncProducer] = weakref.WeakSet()


class AsyncProducer:
    """*Thread-safe.* Queues events for one broker; its thread sends them in batches.

    A batch is sent at ``batch.size`` events, or ``queue.time`` after the previous one. A full queue refuses
    events, at once or after ``queue.enqueueTimeout.ms``. The thread owns the current batch, the event handler
    and its `SyncProducer`.

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
        """Starts the thread, which connects for the first batch. Objects override classes in ``config``.

        Raises `InvalidConfig`: a property is not allowed, or a class cannot be found.
        """
        config = producer_config(AsyncProducerConfig, config)
        self.config: AsyncProducerConfig = config
        self.lost_count = 0
        """Accepted events that could not be sent. Only the thread writes it."""
        self._producer = SyncProducer(host, port, config, clock=clock)
        self._encoder = encoder or new_instance(config.serializer_class, ENCODERS, "serializer.class")
        if callback_handler is None and config.callback_handler is not None:
            callback_handler = new_instance(config.callback_handler, {}, "callback.handler")
        if event_handler is None and config.event_handler is not None:
            event_handler = new_instance(config.event_handler, {}, "event.handler")
        self._callbacks = callback_handler or CallbackHandler()
        self._handler = event_handler or DefaultEventHandler(config, self._lost, self._callbacks, clock=clock)
        self._callbacks.init(handler_props(config.callback_handler_props))
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
        """Raises `QueueFull` or `QueueClosed`: the event was not accepted."""
        self.enqueue(QueueItem(event, topic, partition, key))

    def enqueue(self, item: QueueItem) -> None:
        item = self._callbacks.before_enqueue(item)
        added = False
        try:
            added = self._queue.put(item, self.config.enqueue_timeout_ms)
        finally:
            self._callbacks.after_enqueue(item, added)
        if not added:
            raise QueueFull(
                f"{item.topic}: {len(self._queue)} events wait for {self._producer.peer}: queue.size is "
                f"{self.config.queue_size}, queue.enqueueTimeout.ms {self.config.enqueue_timeout_ms}"
            )

    def flush(self, timeout: float | None = None) -> None:
        """Sends queued events without waiting for full batches; returns when all are sent or lost."""
        if self.runs_here():
            return  # a hook cannot wait for itself
        deadline = Deadline.after(timeout, self._clock) if timeout is not None else None
        if not self._queue.flush(deadline):
            raise self._not_sent()

    def close(self, timeout: float | None = None) -> None:
        """Sends what is left and ends the thread. A second call does nothing.

        Raises `TimeoutError`: not all was sent within ``timeout`` seconds; the thread continues.
        """
        self._queue.close()
        self._join(timeout)

    def retire(self) -> list[QueueItem]:
        """Closes without sending more; returns unsent events, including a running batch if it fails."""
        self._retired = []
        left = self._queue.withdraw()
        self._join(None)
        return [*self._retired, *left]

    def runs_here(self) -> bool:
        """Whether this is the sending thread, which also runs the hooks."""
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
                raise self._not_sent()

    def _not_sent(self) -> TimeoutError:
        return TimeoutError(f"{self._producer.peer}: {len(self._queue)} events and a batch are not sent yet")

    def _run(self) -> None:
        for events, last in self._queue.batches(self.config.queue_time_ms / 1000, self._gather):
            if last and self._retired is None:
                events.extend(self._call_hook([], lambda callbacks: callbacks.last_batch_before_close()))
            self._handle(events)
        self._close_all()

    def _gather(self, events: list[QueueItem], item: QueueItem) -> bool:
        events += self._call_hook([item], lambda callbacks: callbacks.after_dequeuing_existing_data(item))
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
        self._call_hook([], lambda callbacks: callbacks.after_failure(events, error))

    def _call_hook(
        self, otherwise: Sequence[QueueItem], call: Callable[[CallbackHandler], Sequence[QueueItem] | None]
    ) -> Sequence[QueueItem]:
        try:
            return call(self._callbacks) or []
        except Exception:
            logger.exception("%s: a callback handler failed", self._producer.peer)
            return otherwise

    def _close_all(self) -> None:
        for close in (self._callbacks.close, self._handler.close, self._producer.close):
            try:
                close()
            except Exception:
                logger.exception("%s: closing failed", self._producer.peer)


def _close_at_exit() -> None:
    for producer in list(_open_producers):
        logger.warning("an asynchronous producer was not closed; sending what is left")
        producer.close()


atexit.register(_close_at_exit)
