"""The hooks of the asynchronous producer, and what sends its batches unless a hook does."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.producer07 import AsyncProducerConfig
from pyspark_kafkalog.errors import InvalidRecord, InvalidTopic, KafkaError, MessageTooLarge
from pyspark_kafkalog.producer.broker_writer import ProducerRequest
from pyspark_kafkalog.producer.event_queue import QueueItem
from pyspark_kafkalog.producer.message_encoder import Encoder, key_bytes
from pyspark_kafkalog.producer.sync_producer import SyncProducer
from pyspark_kafkalog.types import NewRecord

Lost: TypeAlias = Callable[[Sequence[QueueItem], Exception], None]
"""Told of events that will not be sent, and why."""

logger = logging.getLogger(__name__)

_LONGEST_SECONDS = 24 * 3600.0


class CallbackHandler:
    """Base of the hooks at the queue's stages; each does nothing until it is overridden.

    ``before_enqueue`` and ``after_enqueue`` are called by the threads that send, the others by the
    producer's own thread, one at a time. What a hook raises reaches the sender in the first two; elsewhere
    it is logged, and the events it was called with go on as they are.
    """

    def init(self, props: Mapping[str, str]) -> None:
        """Called once, with ``callback.handler.props``."""

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        """What is put into the queue instead of ``item``."""
        return item

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        """``item`` is in the queue, or there was no room for it."""

    def after_dequeuing_existing_data(self, item: QueueItem) -> Sequence[QueueItem]:
        """What goes into the batch instead of ``item``, which was taken from the queue: any number."""
        return [item]

    def before_sending_data(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """What is sent instead of the batch ``items``. Called by `DefaultEventHandler`."""
        return items

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        """What is added to the last batch when the producer is being closed."""
        return []

    def after_failure(self, items: Sequence[QueueItem], error: Exception) -> None:
        """``items`` are lost, and why. Not among 0.7's hooks, where a line in the log had to do."""

    def close(self) -> None:
        """The last call."""


class EventHandler:
    """Base of what is handed the batches, always by the same thread."""

    def init(self, props: Mapping[str, str]) -> None:
        """Called once, with ``event.handler.props``."""

    def handle(self, events: Sequence[QueueItem], producer: SyncProducer, encoder: Encoder) -> None:
        """Serialise ``events``, at least one, and send them. If this raises, they are lost."""
        raise NotImplementedError

    def close(self) -> None:
        """The last call."""


class DefaultEventHandler(EventHandler):
    """*Lives on its producer's thread.* Serialises a batch, compresses it by topic and partition, sends it.

    What fails for a passing reason is sent again up to ``num.retries`` times. One event that cannot be sent
    at all does not take the others with it: the batch is halved until it is found.
    """

    def __init__(
        self,
        config: AsyncProducerConfig,
        lost: Lost,
        callbacks: CallbackHandler | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._lost, self._callbacks, self._clock = config, lost, callbacks, clock
        backoff_ms = config.retry_backoff_ms
        self._retry = RetryPolicy(backoff_ms, 10 * backoff_ms, config.num_retries, patient=True)

    def handle(self, events: Sequence[QueueItem], producer: SyncProducer, encoder: Encoder) -> None:
        """See the class; it raises nothing for a batch that is lost, but tells of it."""
        if self._callbacks is not None:
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
    """The message of an event; with its key where the wire can carry one. Raises what the encoder raises."""
    payload = encoder.to_message(event.data)
    if protocol == PROTOCOL_07 or event.key is None:
        return payload
    return NewRecord(payload, key_bytes(event.key))


def collated(
    ready: Sequence[tuple[QueueItem, bytes | NewRecord]], config: AsyncProducerConfig
) -> list[ProducerRequest]:
    """One request for each topic and partition, with its messages in their order."""
    sets: dict[tuple[str, int], list[bytes | NewRecord]] = defaultdict(list)
    for event, message in ready:
        sets[event.topic, event.partition].append(message)
    return [
        ProducerRequest(topic, messages, partition, config.codec_of(topic))
        for (topic, partition), messages in sets.items()
    ]
