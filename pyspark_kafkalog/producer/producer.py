"""`Producer`, for users."""

from __future__ import annotations

import atexit
import logging
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.groups import GroupMetadata
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import Offsets, PreparedTransaction
from pyspark_kafkalog.client.transport import Poller
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.definition import checked_properties, parse
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import InvalidRecord, InvalidTxnState, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.record import check_timestamp
from pyspark_kafkalog.producer.accumulator import Accumulator, PartitionQueue
from pyspark_kafkalog.producer.columns import Columns, Rows, arrow_columns
from pyspark_kafkalog.producer.encoder import SMALL_CONTENT, RecordBatches, as_bytes, encoding_of, own_headers
from pyspark_kafkalog.producer.producer_batch import (
    BulkDelivery,
    CallbackRunner,
    Delivery,
    OnBulkDelivery,
    OnDelivery,
)
from pyspark_kafkalog.producer.routing import ProducerMetadata, Route
from pyspark_kafkalog.producer.sender import Sender
from pyspark_kafkalog.producer.transaction_manager import TransactionManager
from pyspark_kafkalog.types import Header

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """*Thread-safe.* Sends records to Kafka in batches, in the background.

    Idempotent by default: a retried record is stored once, and each partition keeps the order of `send`.
    Records wait in a bounded buffer; `send` blocks only while it is full or the topic is unknown. Use it as
    a context manager, or call `close`; both deliver the buffer.

        with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            producer.send("flights", b"...", key=b"JFK")
    """

    def __init__(self, config: Mapping[str, object] | ProducerConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Start the thread, which connects when the first record is sent. Raises `InvalidConfig`."""
        if not isinstance(config, ProducerConfig):
            config = checked_properties(config, "producer")
            # `acks` is a string in Kafka ("all"), but users write 1 as a number.
            words = {name: str(config[name]) for name in ("acks",) if isinstance(config.get(name), int)}
            config = parse(ProducerConfig, {**config, **words}, source="producer")
        self.config = config
        self._clock, self._time_ns = clock, clock.time_ns
        self._encoding = encoding_of(config)
        self._small_overhead = self._encoding.small_overhead
        self._callbacks = CallbackRunner()
        poller = Poller()
        self._accumulator = Accumulator(
            config, wake=poller.wake, on_settled=self._callbacks.submit, clock=clock
        )
        self._directory = ProducerMetadata(config, clock=clock)
        self._transactions = (
            TransactionManager(
                config.transactional_id, config, self._accumulator, flush=self._flush_by, clock=clock
            )
            if config.transactional_id is not None
            else None
        )
        self._sender = Sender(
            self._accumulator, self._directory, poller, config, transactions=self._transactions, clock=clock
        )
        self._routes: dict[str, Route] = {}
        self._closed = False
        self._sender.start()
        _open_producers.add(self)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Add one record to the buffer and return.

        Without ``partition`` the key's hash selects it, as in Kafka's own client; records without a key
        fill one partition's batch after the other. ``timestamp_ms`` defaults to now.
        ``on_delivery(metadata, error)`` is called on the callback thread.

        Raises:
            TypeError: an argument or header is of a wrong type.
            InvalidRecord: the time does not fit 64 bits, a header's name is not UTF-8, or `message.format`
                has no headers.
            MessageTooLarge: the record is above ``max.request.size``.
            UnknownTopicOrPartition: no such topic or partition.
            RequestTimedOut, ConnectionLost: buffer full, or topic unknown, for ``max.block.ms``.
            InvalidTxnState: `transactional.id` is set, and no transaction is open.
            TransactionAbortable: the open transaction has failed and must be aborted.
            KafkaError: the producer is closed.
        """
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        if key is not None and key.__class__ is not bytes:
            key = as_bytes("key", key)
        content = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        if content < SMALL_CONTENT and timestamp_ms is None and not headers:
            size = content + self._small_overhead
        else:
            if headers:
                headers = own_headers(headers)
                self._check_headers(topic)
            if timestamp_ms is not None:
                timestamp_ms = operator.index(timestamp_ms)
                check_timestamp(timestamp_ms)
            size = self._encoding.size_bound(content, headers, timestamp_ms is not None)
            if size > self.config.max_request_size:
                raise self._too_large(topic, size)
        route = self._routes.get(topic)
        if route is None or route.version != self._directory.version:
            route = self._route(topic)
        if partition is not None:
            queue = route.queue(partition)
        elif key is not None and route.by_key is not None:
            queue = route.queues[route.by_key(key)]
        else:
            queue = route.current
            if (batch := queue.open) is None or batch.size + size > route.batch_size:
                queue = route.sticky(size)
            route.spread_bytes += size
        if timestamp_ms is None:
            timestamp_ms = self._time_ns() // 1_000_000
        return self._accumulator.append(queue, value, key, timestamp_ms, headers, size, on_delivery)

    def send_arrow(
        self, topic: str, data: pa.Table | pa.RecordBatch, on_delivery: OnBulkDelivery | None = None
    ) -> BulkDelivery:
        """Send every row of an Arrow table or batch; returns when all are in the buffer.

        Columns: ``value`` (binary or string), and optionally ``key``, ``headers``, ``timestamp`` and
        ``partition``, as in `send`. ``on_delivery(delivery)`` is called once, when every row is settled.

        Raises `InvalidRecord` before sending if a column is missing, unknown or of a wrong type; else as
        `send`, after sending the rows before the failed one.
        """
        delivery = BulkDelivery(on_delivery)
        try:
            new = isinstance(self._encoding, RecordBatches)
            now_ms = self._clock.time_ms()
            for rows in arrow_columns(data, now_ms, self._encoding.size_bound, record_batches=new):
                if isinstance(rows, Columns) and rows.headers is not None:
                    self._check_headers(topic)
                if (largest := rows.largest()) > self.config.max_request_size:
                    raise self._too_large(topic, largest)
                self._send_rows(self._route(topic), rows, delivery)
        finally:
            delivery.complete()
        return delivery

    def partition_count(self, topic: str) -> int:
        """Number of partitions of ``topic``; creates it and raises as `send`."""
        return len(self._route(topic).queues)

    def flush(self, timeout: float | None = None) -> None:
        """Send the buffer without lingering; wait until all is settled and every callback has returned.

        Deliveries and callbacks report failures. Raises `TimeoutError` after ``timeout`` seconds.
        """
        self._flush_by(Deadline.after(timeout, self._clock) if timeout is not None else None)

    def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the `transactional.id`; call it once, before the first transaction.

        Fences an older producer with this id and ends its transaction: aborted, unless its commit was
        decided. Waits up to ``timeout`` seconds, or ``max.block.ms``.

        Raises:
            UnsupportedVersion: the broker has no transactions.
            RequestTimedOut: it took too long; call again.
            InvalidTxnState: it was called before.
            KafkaError: anything else; close the producer.
        """
        self._transactional().init(timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction: readers with read_committed see its records only after the commit, together.

        Sends no request. Raises `InvalidTxnState` before `init_transactions` or in a transaction, and another
        `KafkaError` if the producer has failed and must be closed.
        """
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: str | GroupMetadata) -> None:
        """Commit ``group``'s ``offsets`` with the transaction.

        An offset is the next to read: a number, or a `CommittedOffset` with metadata. Waits up to
        ``max.block.ms`` until they are stored. With `Consumer.group_metadata` instead of a name they are
        refused if the group has reassigned that consumer's partitions.

        Raises:
            InvalidRequest: an offset is below 0; nothing was stored.
            InvalidTxnState: no transaction is open.
            TransactionAbortable: they could not be stored; the transaction must be aborted.
            KafkaError: anything else; close the producer.
        """
        committer = GroupMetadata(group) if isinstance(group, str) else group
        self._transactional().send_offsets(offsets, committer)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records, then commit the transaction.

        Waits up to ``timeout`` seconds, or ``max.block.ms``. An empty transaction sends no request.

        Raises:
            TransactionAbortable: a record was not delivered, or the coordinator refuses; nothing is
                committed; call `abort_transaction`.
            RequestTimedOut: it may be committed or not; only another call of this method is possible.
            InvalidTxnState: no transaction is open.
            ProducerFenced: a newer producer uses the `transactional.id`, or the transaction took longer
                than `transaction.timeout.ms`.
            KafkaError: anything else; close the producer.
        """
        self._transactional().commit(timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop unsent records and abort the transaction; readers with read_committed never see its records.

        Waits up to ``timeout`` seconds, or ``max.block.ms``, for requests in flight. A new transaction may
        begin then, even if this one had failed. Raises as `commit_transaction`.
        """
        self._transactional().abort(timeout)

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Deliver all records and leave the transaction open, also in `close`.

        This producer, or any process with the returned value (`end_transaction`), can end it. The coordinator
        aborts it after `transaction.timeout.ms`. Raises as `commit_transaction`.
        """
        return self._transactional().prepare(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver the buffer within ``timeout`` seconds or ``delivery.timeout.ms``, and end the threads.

        Records not delivered by then fail. A transaction that is neither committed nor prepared is aborted.
        """
        if self._closed:
            return
        self._closed = True
        _open_producers.discard(self)
        longest = self.config.delivery_timeout_ms / 1000 + self.config.request_timeout_ms / 1000
        deadline = Deadline.after(longest if timeout is None else timeout, self._clock)
        if self._transactions is not None:
            self._transactions.close(deadline)
        self._accumulator.close()
        if not self._sender.join(deadline):
            self._sender.stop()
            self._sender.join(Deadline.after(self.config.request_timeout_ms / 1000, self._clock))
        self._callbacks.stop(Deadline.after(max(deadline.left, 1.0), self._clock))

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not closed: the threads deliver the buffer and end.
        accumulator = getattr(self, "_accumulator", None)
        if accumulator is not None and not self._closed:
            accumulator.abandon()

    def _flush_by(self, deadline: Deadline | None) -> None:
        self._accumulator.flush(deadline)
        if not self._callbacks.wait(deadline):
            raise TimeoutError("flush: not every delivery callback has returned")

    def _transactional(self) -> TransactionManager:
        if self._closed:
            raise KafkaError("the producer is closed")
        if self._transactions is None:
            raise InvalidTxnState("transactions need transactional.id, which is not set")
        return self._transactions

    def _route(self, topic: str) -> Route:
        version = self._directory.version
        route = self._routes.get(topic)
        if route is None or route.version != version:
            found = self._directory.topic(topic, Deadline.after(self.config.max_block_ms / 1000, self._clock))
            version = self._directory.version
            route = self._routes[topic] = Route.of(
                found, version, self._accumulator, self.config, previous=route
            )
        return route

    def _send_rows(self, route: Route, rows: Rows, delivery: BulkDelivery) -> None:
        for chosen, own in route.parts(rows):
            position = 0
            while position < len(own):
                queue = chosen or route.sticky(own.size(position, position + 1))
                taken = self._append(queue, own, position, delivery)
                if chosen is None:
                    route.spread_bytes += own.size(position, position + taken)
                position += taken

    def _append(self, queue: PartitionQueue, rows: Rows, start: int, delivery: BulkDelivery) -> int:
        part = self._accumulator.append_rows(queue, rows, start, len(rows), delivery.watcher)
        delivery.add(*part)
        return part[2]

    def _check_headers(self, topic: str) -> None:
        if not self._encoding.has_headers:
            raise InvalidRecord(
                f"{topic}: message.format={self.config.message_format} has no headers; v2 has them"
            )

    def _too_large(self, topic: str, size: int) -> MessageTooLarge:
        limit = self.config.max_request_size
        return MessageTooLarge(f"{topic}: a record of about {size} bytes is above max.request.size={limit}")


def _close_at_exit() -> None:
    for producer in list(_open_producers):
        logger.warning("a producer was not closed; delivering what is left")
        producer.close()


atexit.register(_close_at_exit)
