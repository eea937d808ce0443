"""The producer's thread: sends batches to their leaders and reads the responses."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.client.discovery import Outages
from pyspark_kafkalog.client.retry import Deadline, RetryPolicy
from pyspark_kafkalog.client.transactions import ProducerEpoch
from pyspark_kafkalog.client.transport import Poller
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import CannotConnect, ConnectionLost, KafkaError, RequestTimedOut
from pyspark_kafkalog.producer.accumulator import Accumulator, PartitionQueue
from pyspark_kafkalog.producer.encoder import encoding_of
from pyspark_kafkalog.producer.outcome import OutcomeHandler
from pyspark_kafkalog.producer.producer_batch import ProducerBatch
from pyspark_kafkalog.producer.routing import ProducerMetadata
from pyspark_kafkalog.producer.transaction_manager import Consequence, TransactionManager
from pyspark_kafkalog.protocol.api import produce as api

logger = logging.getLogger(__name__)

Done = Callable[[Any, "KafkaError | None"], object]  # called with a task's result, or with None and its error
_LONGEST_WAIT = 1.0  # seconds between checks of the metadata's age


@dataclass(slots=True, eq=False)
class BrokerLink:
    """*Owned by the sender's thread.* A broker's connection, if any, and its unanswered batches."""

    node_id: int
    connection: Connection | None = None
    sent: dict[Ticket, list[ProducerBatch]] = field(default_factory=dict)
    unconfirmed: list[ProducerBatch] = field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0

    def batches(self) -> list[ProducerBatch]:
        return [batch for batches in self.sent.values() for batch in batches] + self.unconfirmed


class BackgroundTasks:
    """*Owned by the sender's thread.* Runs tasks in short-lived threads; `collect` passes the results on."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._finished: SimpleQueue[tuple[str, Done, Any, KafkaError | None]] = SimpleQueue()
        self._running: set[str] = set()
        self._closed = False

    def start(self, name: str, work: Callable[[], Any], done: Done) -> None:
        """Run ``work`` unless a task of this name is running; a later `collect` calls ``done``."""
        if name in self._running:
            return
        self._running.add(name)
        thread = threading.Thread(
            target=self._run, args=(name, work, done), name=f"kafkalog-producer-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no threads: run it here.
            self._run(name, work, done)

    def collect(self) -> None:
        for name, done, result, error in self._results():
            self._running.discard(name)
            done(result, error)

    def close(self) -> None:
        self._closed = True
        self._dispose()

    def _dispose(self) -> None:
        for _, _, result, _ in self._results():
            if hasattr(result, "close"):
                result.close()

    def _results(self) -> Iterator[tuple[str, Done, Any, KafkaError | None]]:
        while True:
            try:
                yield self._finished.get_nowait()
            except Empty:
                return

    def _run(self, name: str, work: Callable[[], Any], done: Done) -> None:
        result, error = None, None
        try:
            result = work()
        except KafkaError as e:
            error = e
        except Exception as e:
            logger.exception("%s failed", name)
            error = KafkaError(f"{name}: {e!r}")
        self._finished.put((name, done, result, error))
        if self._closed:
            self._dispose()
        self._wake()


class Sender:
    """*Owned by its own thread*; `start`, `stop` and `join` may be called from any. The loop never blocks on
    one broker (`BackgroundTasks`). It ends when the accumulator is closed and empty, or at `stop`.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        directory: ProducerMetadata,
        poller: Poller,
        config: ProducerConfig,
        *,
        transactions: TransactionManager | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._accumulator, self._directory, self._poller = accumulator, directory, poller
        self._transactions = transactions
        self._config, self._clock = config, clock
        self._policy = RetryPolicy.of(config, patient=True)
        self._outcome = OutcomeHandler(accumulator, directory, self._policy, config)
        self._encoding = encoding_of(config)
        self._links: dict[int, BrokerLink] = {}
        self._outages = Outages(config, clock)
        self._tasks = BackgroundTasks(poller.wake)
        self._identity_failures = 0
        self._identity_not_before = self._refresh_not_before = self._adding_not_before = 0.0
        self._lost_some = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kafkalog-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._poller.wake()

    def join(self, deadline: Deadline | None) -> bool:
        """Wait for the thread until ``deadline``; True once it has ended."""
        if threading.current_thread() is self._thread:
            return False
        self._thread.join(deadline.left if deadline else None)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping and not self._accumulator.drained:
            try:
                self._step()
            except Exception:
                logger.exception("the producer's thread continues after an unexpected error")
                self._clock.sleep(self._policy.backoff(1))
        for batch in self._accumulator.unsettled():
            text = f"{batch.tp}: the producer was closed before {batch.count} records were delivered"
            self._accumulator.settle(batch, error=KafkaError(text))
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
        self._tasks.close()
        self._poller.close()
        self._directory.close()
        if self._transactions is not None:
            self._transactions.disconnect()

    def _step(self) -> None:
        now = self._clock.monotonic()
        self._tasks.collect()
        for batch in self._accumulator.expired(now):
            self._outcome.expired(batch)
        self._check_request_timeouts(now)
        self._refresh_metadata(now)
        self._lost_some = False
        look_again = min(self._dispatch(now), self._next_request_timeout())
        wait = max(0.0, min(look_again - self._clock.monotonic(), _LONGEST_WAIT))
        if self._lost_some:
            wait = 0.0  # the state changed, so look again
        for link, readable, writable in self._poller.wait(wait):
            if writable:
                self._flush(link)
            if readable:
                self._read(link)

    def _dispatch(self, now: float) -> float:
        """Send every batch that can be sent now; returns when to look again if nothing happens."""
        if self._config.enable_idempotence and self._accumulator.identity is None:
            _, soonest = self._accumulator.ready(now)
            self._ask_identity(now)
            return max(soonest, self._identity_not_before)
        queues, soonest = self._accumulator.ready(now)
        if self._transactions is not None:
            queues, again = self._in_transaction(self._transactions, queues, now)
            soonest = min(soonest, again)
        by_node: dict[int, list[PartitionQueue]] = defaultdict(list)
        for queue in queues:
            node_id = self._directory.leader(queue.tp)
            if node_id is None:
                self._directory.stale = True
                soonest = min(soonest, now + self._policy.backoff(1))
            else:
                by_node[node_id].append(queue)
        for node_id, own in by_node.items():
            link = self._links.setdefault(node_id, BrokerLink(node_id))
            if link.connection is None:
                self._connect(link, now)
                soonest = min(soonest, link.not_before if link.not_before > now else inf)
            else:
                self._send_to(link, own, now)
        return soonest

    def _in_transaction(
        self, transactions: TransactionManager, queues: list[PartitionQueue], now: float
    ) -> tuple[list[PartitionQueue], float]:
        """Queues whose partitions are in the transaction, and when to look again. Adds the others."""
        # After a failed transaction nothing new is sent, after a failed producer nothing at all.
        trouble = transactions.trouble
        if trouble is not None:
            self._accumulator.discard(trouble[1], numbered=trouble[0] is Consequence.CLOSE)
        held = transactions.partitions
        missing = [queue.tp for queue in queues if queue.tp not in held]
        if not missing:
            return queues, inf

        def added(_: object, error: KafkaError | None) -> None:
            if error is not None:
                self._accumulator.trouble = error
                self._adding_not_before = self._clock.monotonic() + self._policy.backoff(1)

        if now >= self._adding_not_before:
            self._tasks.start("transaction", lambda: transactions.add_partitions(missing), added)
        held_now = [queue for queue in queues if queue.tp in held]
        return held_now, self._adding_not_before if now < self._adding_not_before else inf

    def _send_to(self, link: BrokerLink, queues: list[PartitionQueue], now: float) -> None:
        """Fill requests, each with one batch per partition, up to the limit in flight."""
        while queues and link.connection is not None:
            if len(link.sent) >= self._config.max_in_flight or link.connection.unsent:
                return
            batches: list[ProducerBatch] = []
            later: list[PartitionQueue] = []
            again: list[PartitionQueue] = []
            size = 0
            for queue in queues:
                if batches and size + queue.next_size() > self._config.max_request_size:
                    later.append(queue)
                    continue
                batch = self._accumulator.take(queue, now)
                if batch is not None and self._encoded(batch):
                    batches.append(batch)
                    size += batch.size
                    again.append(queue)
            if batches:
                self._send(link, batches, now)
            queues = later + again

    def _encoded(self, batch: ProducerBatch) -> bool:
        try:
            batch.encode(self._encoding)
        except KafkaError as e:
            self._accumulator.settle(batch, error=e)
            return False
        except Exception as e:
            # For example out of memory. The batch is in no queue, so settle it here.
            logger.exception("%s: a batch of %d records cannot be encoded", batch.tp, batch.count)
            self._accumulator.settle(batch, error=KafkaError(f"{batch.tp}: cannot be encoded: {e!r}"))
            return False
        return True

    def _send(self, link: BrokerLink, batches: list[ProducerBatch], now: float) -> None:
        connection = link.connection
        if connection is None:
            return
        answered = self._config.required_acks != 0
        for batch in batches:
            batch.attempts += 1
            batch.sent = True
        try:
            version = self._encoding.produce_version(connection)
        except KafkaError as e:
            for batch in batches:
                self._accumulator.settle(batch, error=e)
            return
        try:
            ticket = connection.send_now(self._request(batches), answered=answered, version=version)
        except Exception as e:
            # Any error: a batch in flight without a request would never be settled.
            link.unconfirmed += batches
            self._lost(link, _as_kafka_error(e, f"{connection.peer}: a request cannot be encoded"), now)
            return
        if answered:
            link.sent[ticket] = batches
        else:
            link.unconfirmed += batches
        self._watch(link)

    def _request(self, batches: Sequence[ProducerBatch]) -> api.ProduceRequest:
        config = self._config
        topics: dict[str, list[api.PartitionProduceData]] = defaultdict(list)
        for batch in batches:
            topics[batch.tp.topic].append(api.PartitionProduceData(batch.tp.partition, batch.encoded))
        data = tuple(api.TopicProduceData(name, tuple(each)) for name, each in topics.items())
        return api.ProduceRequest(
            config.transactional_id, config.required_acks, config.request_timeout_ms, data
        )

    def _watch(self, link: BrokerLink) -> None:
        """Update the poller's interest in this connection; settle batches that need no response."""
        connection = link.connection
        if connection is None:
            return
        self._poller.watch(connection.transport, link, writing=connection.transport.unsent)
        if self._config.required_acks == 0 and not connection.unsent:
            batches, link.unconfirmed = link.unconfirmed, []
            for batch in batches:
                self._accumulator.settle(batch)

    def _flush(self, link: BrokerLink) -> None:
        if link.connection is None:
            return
        try:
            link.connection.flush_now()
        except KafkaError as e:
            self._lost(link, e, self._clock.monotonic())
        else:
            self._watch(link)

    def _read(self, link: BrokerLink) -> None:
        connection = link.connection
        if connection is None:
            return
        try:
            answers = connection.receive_now()
            for ticket, answer in answers:
                self._answered(link, link.sent[ticket], answer)
                del link.sent[ticket]
            if connection.broken:
                connection.receive_now()
            elif connection.transport.unsent or link.unconfirmed:
                self._watch(link)  # a login is over that requests waited for
        except Exception as e:
            error = _as_kafka_error(e, f"{connection.peer}: a response cannot be handled")
            self._lost(link, error, self._clock.monotonic())

    def _answered(self, link: BrokerLink, batches: list[ProducerBatch], answer: api.ProduceResponse) -> None:
        link.failures = 0
        results = {
            (topic.name, result.index): result
            for topic in answer.responses
            for result in topic.partition_responses
        }
        now = self._clock.monotonic()
        peer = link.connection.peer if link.connection is not None else ""
        for batch in batches:
            self._outcome.answered(batch, results.get((batch.tp.topic, batch.tp.partition)), peer, now)

    def _connect(self, link: BrokerLink, now: float) -> None:
        address = self._directory.address(link.node_id)
        if address is None or now < link.not_before:
            return

        def connected(connection: Connection | None, error: KafkaError | None) -> None:
            if connection is None:
                error = error or ConnectionLost("no connection")
                if isinstance(error, CannotConnect):
                    patient = self._config.answered_before
                    error = self._outages.advertised(link.node_id, address, error, patient=patient)
                self._lost(link, error, self._clock.monotonic())
                if not error.retriable:
                    for batch in self._accumulator.unsettled():
                        if self._directory.leader(batch.tp) == link.node_id:
                            self._accumulator.settle(batch, error=error)
                return
            link.connection, link.failures = connection, 0
            self._watch(link)

        host, port = address
        self._tasks.start(
            f"connect-{link.node_id}",
            lambda: Connection(host, port, self._config, clock=self._clock),
            connected,
        )

    def _lost(self, link: BrokerLink, error: KafkaError, now: float) -> None:
        """Close the connection and retry its batches; the leader may have changed."""
        connection, link.connection = link.connection, None
        batches = link.batches()
        link.sent, link.unconfirmed = {}, []
        if connection is not None:
            self._poller.forget(connection.transport)
            connection.close()
        self._lost_some = True
        link.failures += 1
        link.not_before = now + self._policy.backoff(link.failures)
        logger.info("producer: broker %d: %s; retrying %d batches", link.node_id, error, len(batches))
        self._directory.stale = True
        self._accumulator.trouble = error
        for batch in batches:
            self._outcome.failed(batch, error, now)

    def _check_request_timeouts(self, now: float) -> None:
        limit = self._config.request_timeout_ms / 1000
        for link in self._links.values():
            connection = link.connection
            if connection is None or not link.sent:
                continue
            sent_at = connection.oldest_sent_at
            if sent_at is not None and now - sent_at > limit:
                text = f"{connection.peer}: no response within request.timeout.ms={int(limit * 1000)}"
                self._lost(link, RequestTimedOut(text), now)

    def _next_request_timeout(self) -> float:
        sent = [
            sent_at
            for link in self._links.values()
            if link.sent and link.connection and (sent_at := link.connection.oldest_sent_at) is not None
        ]
        return min(sent, default=inf) + self._config.request_timeout_ms / 1000

    def _refresh_metadata(self, now: float) -> None:
        if not self._directory.due(now) or now < self._refresh_not_before:
            return
        self._refresh_not_before = now + self._policy.backoff(1)

        def refreshed(_: object, error: KafkaError | None) -> None:
            if error is not None:
                logger.info("producer: refreshing metadata failed: %s", error)

        self._tasks.start("metadata", self._directory.refresh, refreshed)

    def _ask_identity(self, now: float) -> None:
        if now < self._identity_not_before or not self._accumulator.unsettled():
            return

        def received(identity: ProducerEpoch | None, error: KafkaError | None) -> None:
            if identity is not None:
                self._accumulator.identity, self._identity_failures = identity, 0
                return
            self._identity_failures += 1
            failure = error or KafkaError("no producer id")
            wait = self._policy.again(failure, self._identity_failures)
            self._identity_not_before = self._clock.monotonic() + (wait or 0.0)
            if wait is None:
                self._outcome.no_identity(failure)

        self._tasks.start("producer-id", self._directory.new_identity, received)


def _as_kafka_error(error: Exception, doing: str) -> KafkaError:
    """``error`` itself if it is ours; else log the bug and return a final error."""
    if isinstance(error, KafkaError):
        return error
    logger.error("%s", doing, exc_info=error)
    return KafkaError(f"{doing}: {error!r}")
