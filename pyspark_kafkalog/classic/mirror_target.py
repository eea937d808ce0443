"""A mirror's target: a cluster on 0.7's wire or on today's, and the producer for it."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from pyspark_kafkalog.classic.consumer.stream import MessageMetadata
from pyspark_kafkalog.classic.producer.async_producer import EventQueue, QueueClosed, QueueItem
from pyspark_kafkalog.classic.producer.router import Destination, router_of
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror_config import AS_SOURCE, Mirroring, Target07Config
from pyspark_kafkalog.config.producer_config import ProducerConfig
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
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.producer.producer_batch import RecordMetadata
from pyspark_kafkalog.types import NO_TIMESTAMP, Header
from pyspark_kafkalog.zookeeper.paths import BrokerNode

_log = logging.getLogger(__name__)

_BATCH_BYTES = 1 << 20  # payload size at which a batch for 0.7 is sent
_QUEUED_BYTES = 32 << 20  # payload in flight to a 0.7 target above which `send` blocks

Lost: TypeAlias = Callable[[int, KafkaError], bool]
"""Called on any thread with the number of messages that failed and the error; returns whether to continue."""


class ProducerTarget:
    """*Thread-safe: a lock guards its producers.* Sends on today's wire with a `Producer`, idempotent unless
    the target needs message sets of v0 or v1.

    Uses one producer per codec. When the codec changes within a source partition, first flushes the previous
    producer, to keep the order. For v0 and v1, drops headers with one warning, and zstd becomes gzip.
    """

    def __init__(
        self, config: ProducerConfig, keep_codec: bool, as_source: bool, lost: Lost, clock: Clock
    ) -> None:
        self._config, self._keep_codec, self._as_source, self._lost = config, keep_codec, as_source, lost
        self._clock = clock
        self._lock = threading.Lock()
        self._drop_warned = False
        self._producers: dict[str, Producer] = {}
        self._last: dict[tuple[str, str, int, int], Producer] = {}

    def send(self, source: str, where: MessageMetadata) -> None:
        """Keeps the order of each source partition; blocks while too many are in flight. Failures: `Lost`."""
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
        for producer in self._all_producers():
            producer.flush()

    def close(self, *, at_once: bool = False) -> None:
        """Delivers accepted messages, or with ``at_once`` none, and ends."""
        for producer in self._all_producers():
            producer.close(0 if at_once else None)

    def _all_producers(self) -> list[Producer]:
        with self._lock:
            return list(self._producers.values())

    def _headers(self, where: MessageMetadata) -> Sequence[Header]:
        headers = where.record.headers
        if not headers or not self._config.sends_old_sets:
            return headers
        if not self._drop_warned:
            self._drop_warned = True
            _log.warning(
                "%s: headers are dropped from all messages: target.message.format=%s does not have them",
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
    """*Thread-safe: immutable.* The key is the partition number at the source."""

    def partition(self, key: Any, partition_count: int) -> int:
        return int(key) % partition_count


class _Payload(NamedTuple):
    data: bytes
    codec: Codec


class RequestTarget:
    """*Thread-safe: its queue is; sending belongs to its thread.* Sends on 0.7's wire, one batch at a time,
    retried until the brokers have it, so that none can overtake another.
    """

    def __init__(
        self, config: Target07Config, keep_codec: bool, as_source: bool, lost: Lost, clock: Clock
    ) -> None:
        self._config, self._keep_codec, self._as_source, self._lost = config, keep_codec, as_source, lost
        self._clock = clock
        self._queue = EventQueue(config.queue_size, clock=clock)
        self._producers: dict[tuple[str, int], SyncProducer] = {}
        self._retry = RetryPolicy(config.retry_backoff_ms, 10 * config.retry_backoff_ms, patient=True)
        self._given_up = self._drop_warned = False
        self._gathered_bytes = 0  # of the thread's current batch
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

    def send(self, source: str, where: MessageMetadata) -> None:  # noqa: ARG002  (as `ProducerTarget`)
        record = where.record
        if not self._drop_warned and (record.key is not None or record.headers or record.value is None):
            self._drop_warned = True
            _log.warning(
                "%s: keys and headers are dropped and null values become empty, in all messages: "
                "the target's protocol=0.7 does not have them",
                where.topic,
            )
        codec = where.codec if self._keep_codec else self._config.codec_of(where.topic)
        payload = _Payload(record.value or b"", codec if codec in CODECS else Codec.GZIP)
        key = where.partition if self._as_source else record.key
        # Without ZooKeeper, partitions are chosen at random, one per batch.
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
        for items, _ in self._queue.batches(self._config.queue_time_ms / 1000, self._gather):
            self._send_batch(items)
            with self._room:
                self._queued_bytes -= self._gathered_bytes
                self._room.notify_all()
            self._gathered_bytes = 0

    def _gather(self, items: list[QueueItem], item: QueueItem) -> bool:
        items.append(item)
        self._gathered_bytes += len(item.data.data)
        return len(items) >= self._config.batch_size or self._gathered_bytes >= _BATCH_BYTES

    def _send_batch(self, items: Sequence[QueueItem]) -> None:
        try:
            self._deliver(items)
        except Exception as e:  # for example from a user's partitioner; waiting threads must be woken
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
                _log.warning("retrying %d message(s): %s", len(items), error)
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
        """The remaining items in order, and the first error."""
        parts: dict[BrokerNode, list[tuple[int, int]]] = defaultdict(list)
        routes: dict[tuple[str, Any], Destination] = {}
        try:
            for place, item in enumerate(items):
                if (item.topic, item.key) not in routes:
                    routes[item.topic, item.key] = self._router.route(item.topic, item.key)
                route = routes[item.topic, item.key]
                parts[route.broker].append((place, route.partition))
        except KafkaError as e:
            # Elsewhere "no live broker" is final; a mirror retries it.
            away = e.code == ErrorCode.BROKER_NOT_AVAILABLE
            return items, ConnectionLost(str(e)) if away else e
        left: list[int] = []
        failure: KafkaError | None = None
        for broker, rows in parts.items():
            try:
                rows_sent = [(items[place], partition) for place, partition in rows]
                self._producer(broker).multi_send(_requests(rows_sent))
            except KafkaError as e:
                failure = failure or e
                left += [place for place, _ in rows]
        if failure is not None:
            self._router.failed({items[place].topic for place in left})
        return [items[place] for place in sorted(left)], failure

    def _producer(self, broker: BrokerNode) -> SyncProducer:
        address = (broker.host, broker.port)
        if address not in self._producers:
            self._producers[address] = SyncProducer(*address, self._config, clock=self._clock)
        return self._producers[address]


def _requests(rows: Sequence[tuple[QueueItem, int]]) -> list[ProducerRequest]:
    """Consecutive messages of the same codec together, in the order of each partition."""
    runs: dict[tuple[str, int], list[tuple[Codec, list[bytes]]]] = defaultdict(list)
    for item, partition in rows:
        of_partition = runs[item.topic, partition]
        if not of_partition or of_partition[-1][0] is not item.data.codec:
            of_partition.append((item.data.codec, []))
        of_partition[-1][1].append(item.data.data)
    return [
        ProducerRequest(topic, messages, partition, codec)
        for (topic, partition), of_partition in runs.items()
        for codec, messages in of_partition
    ]


MirrorTarget = ProducerTarget | RequestTarget


def target_of(config: Mirroring, lost: Lost, *, clock: Clock = SYSTEM_CLOCK) -> MirrorTarget:
    as_source = config.mirror.partition_assignment == AS_SOURCE
    if isinstance(config.target, Target07Config):
        return RequestTarget(config.target, config.keep_codec, as_source, lost, clock)
    return ProducerTarget(config.target, config.keep_codec, as_source, lost, clock)
