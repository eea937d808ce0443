"""Where a mirror's messages go: a cluster of 0.7's wire or of today's, by the producer of each."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.classic.consumer.stream import MessageMetadata
from pyspark_kafkalog.classic.producer.async_producer import EventQueue, QueueClosed, QueueItem
from pyspark_kafkalog.classic.producer.router import Route, router_of
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror import AS_SOURCE, Mirroring, Target07Config
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    MessageTooLarge,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import CODECS
from pyspark_kafkalog.producer.batch import RecordMetadata
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import NO_TIMESTAMP, Header
from pyspark_kafkalog.zookeeper.values import BrokerNode

_log = logging.getLogger(__name__)

_BATCH_BYTES = 1 << 20
"""Payload after which a batch for 0.7 is sent, however few messages it has."""

_QUEUED_BYTES = 32 << 20
"""Payload on its way to a target of 0.7 above which no more is taken, however few messages it is."""

Lost: TypeAlias = Callable[[int, KafkaError], bool]
"""Told that so many messages could not be sent, and why; whether to send those after them. Any thread."""


class MirrorTarget(Protocol):
    """*Thread-safe.* Takes messages in the order of each source's partition, and keeps it."""

    def send(self, source: str, where: MessageMetadata) -> None:
        """Take a message; waits while too many are on their way. What fails is told to `Lost`."""
        ...

    def flush(self) -> None:
        """Return when the target has all that was taken before, or it was told to be lost."""
        ...

    def close(self, *, at_once: bool = False) -> None:
        """Send what was taken, or ``at_once`` nothing any more, and end."""
        ...


class ProducerTarget:
    """*Thread-safe: a lock guards its producers.* Today's wire, by a `Producer`, idempotent unless the target
    takes message sets of v0 or v1.

    A producer has one codec, so to keep those of the messages there is one of each. When the codec changes
    within a partition of a source, the producer that had the messages before is waited for: else they could
    be overtaken. What v0 and v1 lack is left out and told of once: headers; zstd becomes gzip.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        keep_codec: bool,
        as_source: bool,
        lost: Lost,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._keep_codec, self._as_source, self._lost = config, keep_codec, as_source, lost
        self._clock = clock
        self._lock = threading.Lock()
        self._dropping_told = False
        self._producers: dict[str, Producer] = {}
        self._last: dict[tuple[str, str, int, int], Producer] = {}

    def send(self, source: str, where: MessageMetadata) -> None:
        record = where.record
        try:
            producer = self._producer(source, where)
            partition = None
            if self._as_source:
                partition = where.partition % producer.partition_count(where.topic)
            producer.send(
                where.topic,
                record.value,
                record.key,
                partition=partition,
                timestamp_ms=None if record.timestamp == NO_TIMESTAMP else record.timestamp,
                headers=self._headers(where),
                on_delivery=self._settled,
            )
        except KafkaError as e:
            self._lost(1, e)

    def flush(self) -> None:
        with self._lock:
            producers = list(self._producers.values())
        for producer in producers:
            producer.flush()

    def close(self, *, at_once: bool = False) -> None:
        with self._lock:
            producers = list(self._producers.values())
        for producer in producers:
            producer.close(0 if at_once else None)

    def _headers(self, where: MessageMetadata) -> Sequence[Header]:
        headers = where.record.headers
        if not headers or not self._config.sends_old_sets:
            return headers
        if not self._dropping_told:
            self._dropping_told = True
            _log.warning(
                "%s: headers are left out, here and wherever else they come: target.message.format=%s does "
                "not have them",
                where.topic,
                self._config.message_format,
            )
        return ()

    def _codec(self, where: MessageMetadata) -> str:
        if not self._keep_codec:
            return self._config.compression_type
        kept = where.codec.name.lower()
        return kept if kept in self._config.codecs else "gzip"

    def _producer(self, source: str, where: MessageMetadata) -> Producer:
        codec = self._codec(where)
        producer = self._producers.get(codec)
        if producer is None:
            with self._lock:
                if codec not in self._producers:
                    config = replace(self._config, compression_type=codec)
                    self._producers[codec] = Producer(config, clock=self._clock)
                producer = self._producers[codec]
        if self._keep_codec:
            partition = (source, where.topic, where.broker, where.partition)
            before = self._last.get(partition)
            if before is not None and before is not producer:
                before.flush()
            self._last[partition] = producer
        return producer

    def _settled(self, _: RecordMetadata | None, error: KafkaError | None) -> None:
        if error is not None:
            self._lost(1, error)


class ByNumber:
    """*Thread-safe: it holds nothing.* The partitioner of a message whose key is its number at the source."""

    def partition(self, key: Any, partition_count: int) -> int:
        """``key`` is a number from 0 on."""
        return int(key) % partition_count


class _Payload(NamedTuple):
    """What 0.7 has of a message, and how it is to be compressed."""

    data: bytes
    codec: Codec


class RequestTarget:
    """*Thread-safe: its queue is; what is sent is its thread's.* 0.7's wire, by a `SyncProducer` a broker.

    One batch is on its way at a time, and is sent again until the brokers have it: none can overtake another.
    """

    def __init__(
        self,
        config: Target07Config,
        *,
        keep_codec: bool,
        as_source: bool,
        lost: Lost,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Find the brokers. Raises `ConnectionLost`: ZooKeeper cannot be reached."""
        self._config, self._keep_codec, self._as_source, self._lost = config, keep_codec, as_source, lost
        self._clock = clock
        self._queue = EventQueue(config.queue_size, clock=clock)
        self._producers: dict[tuple[str, int], SyncProducer] = {}
        self._retry = RetryPolicy(config.retry_backoff_ms, 10 * config.retry_backoff_ms, patient=True)
        self._given_up = self._dropping_told = False
        self._gathered_bytes = 0  # the thread's, of the batch that it gathers
        self._room = threading.Condition()  # guards the number below
        self._queued_bytes = 0
        self._router = router_of(config, ByNumber() if as_source else None)
        try:
            self._router.start(lambda _: None)
        except BaseException:
            self._router.close()
            raise
        self._thread = threading.Thread(target=self._run, name="kafkalog-mirror-target", daemon=True)
        self._thread.start()

    def send(self, source: str, where: MessageMetadata) -> None:  # noqa: ARG002  (as every target)
        record = where.record
        if not self._dropping_told and (record.key is not None or record.headers or record.value is None):
            self._dropping_told = True
            _log.warning(
                "%s: keys and headers are left out and null values become empty ones, here and wherever else "
                "they come: the target's protocol=0.7 does not have them",
                where.topic,
            )
        codec = where.codec if self._keep_codec else self._config.codec_of(where.topic)
        payload = _Payload(record.value or b"", codec if codec in CODECS else Codec.GZIP)
        key = where.partition if self._as_source else record.key
        # Without ZooKeeper any partition will do, and whatever has the same place in the queue shares one.
        key = None if self._config.broker_list is not None else key
        with self._room:
            self._room.wait_for(lambda: self._queued_bytes < _QUEUED_BYTES or self._given_up)
            self._queued_bytes += len(payload.data)
        try:
            self._queue.put(QueueItem(payload, where.topic, key=key), -1)
        except QueueClosed as e:
            self._lost(1, e)

    def flush(self) -> None:
        self._queue.flush(None)

    def close(self, *, at_once: bool = False) -> None:
        if at_once:
            self._given_up = True
            self._queue.withdraw()
            with self._room:
                self._room.notify_all()
        self._queue.close()
        self._thread.join()
        for producer in self._producers.values():
            producer.close()
        self._router.close()

    def _run(self) -> None:
        """The thread: gather, send, until the queue is closed and empty."""
        for items, _ in self._queue.batches(self._config.queue_time_ms / 1000, self._gather):
            self._hand_over(items)
            with self._room:
                self._queued_bytes -= self._gathered_bytes
                self._room.notify_all()
            self._gathered_bytes = 0

    def _gather(self, items: list[QueueItem], item: QueueItem) -> bool:
        items.append(item)
        self._gathered_bytes += len(item.data.data)
        return len(items) >= self._config.batch_size or self._gathered_bytes >= _BATCH_BYTES

    def _hand_over(self, items: Sequence[QueueItem]) -> None:
        try:
            self._deliver(items)
        except Exception as e:  # of a partitioner, which may be anybody's: who waits must not wait for ever
            _log.exception("sending to the target failed")
            failed = KafkaError(f"sending to the target failed: {e!r}")
            self._given_up = not self._lost(len(items), failed)
        self._queue.settle()

    def _deliver(self, items: Sequence[QueueItem]) -> None:
        attempts = Attempts(
            self._retry,
            Deadline.after(self._config.delivery_timeout_ms / 1000, self._clock),
            doing=f"sending {len(items)} messages",
            clock=self._clock,
        )
        while items and not self._given_up:
            items, error = self._attempt(items)
            if error is None:
                continue
            try:
                attempts.failed(error)
                _log.warning("%d message(s) are sent again: %s", len(items), error)
            except (MessageTooLarge, InvalidRecord, InvalidTopic) as e:
                if len(items) == 1:
                    self._given_up = not self._lost(1, e)
                    return
                half = len(items) // 2
                self._deliver(items[:half])
                items = items[half:]
            except KafkaError as e:
                self._given_up = not self._lost(len(items), e)
                return

    def _attempt(self, items: Sequence[QueueItem]) -> tuple[Sequence[QueueItem], KafkaError | None]:
        """Send each broker its part; returns what is left of ``items``, in their order, and why."""
        parts: dict[BrokerNode, list[tuple[int, int]]] = defaultdict(list)
        routes: dict[tuple[str, Any], Route] = {}
        try:
            for place, item in enumerate(items):
                route = routes.get((item.topic, item.key))
                if route is None:
                    route = self._router.route(item.topic, item.key)
                    routes[item.topic, item.key] = route
                parts[route.broker].append((place, route.partition))
        except KafkaError as e:
            # A cluster without a live broker is no passing trouble to Kafka; to a mirror it is.
            away = e.code == ErrorCode.BROKER_NOT_AVAILABLE
            return items, ConnectionLost(str(e)) if away else e
        left: list[int] = []
        failure: KafkaError | None = None
        for broker, rows in parts.items():
            try:
                self._producer(broker).multi_send(
                    _requests([(items[place], partition) for place, partition in rows])
                )
            except KafkaError as e:
                failure = failure or e
                left += [place for place, _ in rows]
        if failure is not None:
            self._look_again({items[place].topic for place in left})
        return [items[place] for place in sorted(left)], failure

    def _look_again(self, topics: set[str]) -> None:
        for topic in topics:
            try:
                self._router.failed(topic)
            except KafkaError as e:
                _log.warning("%s: the target's brokers cannot be looked up: %s", topic, e)

    def _producer(self, broker: BrokerNode) -> SyncProducer:
        address = (broker.host, broker.port)
        if address not in self._producers:
            self._producers[address] = SyncProducer(*address, self._config, clock=self._clock)
        return self._producers[address]


def _requests(rows: Sequence[tuple[QueueItem, int]]) -> list[ProducerRequest]:
    """Runs of messages with the same codec, in the order of each partition."""
    runs: dict[tuple[str, int], list[tuple[Codec, list[bytes]]]] = defaultdict(list)
    for item, partition in rows:
        found = runs[item.topic, partition]
        if not found or found[-1][0] is not item.data.codec:
            found.append((item.data.codec, []))
        found[-1][1].append(item.data.data)
    return [
        ProducerRequest(topic, messages, partition, codec)
        for (topic, partition), found in runs.items()
        for codec, messages in found
    ]


def target_of(config: Mirroring, lost: Lost, *, clock: Clock = SYSTEM_CLOCK) -> MirrorTarget:
    """The target that a configuration asks for. Raises `ConnectionLost`: ZooKeeper cannot be reached."""
    as_source = config.mirror.partition_assignment == AS_SOURCE
    if isinstance(config.target, Target07Config):
        return RequestTarget(
            config.target, keep_codec=config.keep_codec, as_source=as_source, lost=lost, clock=clock
        )
    return ProducerTarget(
        config.target, keep_codec=config.keep_codec, as_source=as_source, lost=lost, clock=clock
    )
