"""The producer's metadata: topics and leaders, shared by its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kafkalog.client.connection import Address, Connection
from pyspark_kafkalog.client.discovery import NO_LEADER, Cluster, ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, KafkaError, error_for
from pyspark_kafkalog.producer.accumulator import ProducerIdentity
from pyspark_kafkalog.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.types import TopicPartition


class ProducerMetadata:
    """*Thread-safe.* Owns the producer's `Cluster`, guarded by a lock that is held over its I/O.

    The current view is immutable and replaced as a whole, so reading it needs no lock. ``version`` changes
    with it.
    """

    def __init__(self, config: ProducerConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.version = 0
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._cluster = Cluster(config, clock=clock)
        self._names: set[str] = set()
        self._view = ClusterMetadata(None, -1, {}, {})
        self._learned_at = clock.monotonic()
        self._stale = False
        self._closed = False

    def topic(self, name: str, deadline: Deadline) -> TopicMetadata:
        """The partitions of a topic, created if the broker does so; waits for metadata if there is none."""
        known = self._view.topics.get(name)
        if known is not None and known.partitions:
            return known
        with self._held(deadline, f"looking up topic {name}"):
            attempts = self._cluster.retrying(f"looking up topic {name}", deadline)
            while True:
                try:
                    found = self._learn([*self._names, name], deadline).topics[name]
                    if found.error == ErrorCode.NONE and found.partitions:
                        return found
                    error = found.error or ErrorCode.LEADER_NOT_AVAILABLE
                    raise error_for(error, f"topic {name}: {error.name}")
                except KafkaError as e:
                    attempts.failed(e)

    def leader(self, tp: TopicPartition) -> int | None:
        """The node that leads ``tp``, if known. Does not wait."""
        topic = self._view.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        if partition is None or partition.leader == NO_LEADER or partition.leader not in self._view.brokers:
            return None
        return partition.leader

    def address(self, node_id: int) -> Address | None:
        """Host and port of a node, if known. Does not wait."""
        return self._view.brokers.get(node_id)

    def mark_stale(self) -> None:
        """The metadata proved wrong: `due` from now on."""
        self._stale = True

    def due(self, now: float) -> bool:
        """Whether it is time to `refresh`."""
        age = now - self._learned_at
        return bool(self._names) and (self._stale or age >= self._config.metadata_max_age_ms / 1000)

    def refresh(self) -> None:
        """Refresh every topic in use. Waits at most ``request.timeout.ms``. Raises `ConnectionLost`."""
        deadline = self._deadline()
        with self._held(deadline, "refreshing topics"):
            self._learn([*self._names], deadline)

    def new_identity(self) -> ProducerIdentity:
        """A new producer id. Waits at most ``request.timeout.ms``."""
        deadline = self._deadline()
        request = InitProducerIdRequest(transaction_timeout_ms=self._config.transaction_timeout_ms)

        def ask(connection: Connection) -> InitProducerIdResponse:
            answer: InitProducerIdResponse = connection.request(request, deadline=deadline)
            if answer.error_code != ErrorCode.NONE:
                raise error_for(answer.error_code, f"{connection.peer}: no producer id")
            return answer

        with self._held(deadline, "requesting a producer id"):
            answer = self._cluster.call("requesting a producer id", ask, deadline)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def close(self) -> None:
        """Close the look-up connections, at once or when the current look-up ends. Does not wait."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            self._cluster.close()
            self._lock.release()

    @contextmanager
    def _held(self, deadline: Deadline, doing: str) -> Iterator[None]:
        """The lock, waited for until ``deadline``: its holder may be waiting for a broker."""
        if not self._lock.acquire(timeout=deadline.left):
            raise ConnectionLost(f"{doing}: another look-up is still waiting for a broker")
        try:
            yield
        finally:
            if self._closed:
                self._cluster.close()
            self._lock.release()

    def _deadline(self) -> Deadline:
        return Deadline.after(self._config.request_timeout_ms / 1000, self._clock)

    def _learn(self, names: list[str], deadline: Deadline) -> ClusterMetadata:
        """Look up ``names`` and publish the result. Caller holds the lock."""
        self._stale = False
        try:
            view = self._cluster.metadata(names, refresh=True, allow_auto_creation=True, deadline=deadline)
        except KafkaError:
            self._stale = True
            raise
        self._names.update(name for name, topic in view.topics.items() if topic.partitions)
        self._learned_at = self._clock.monotonic()
        changed = (view.topics, view.brokers) != (self._view.topics, self._view.brokers)
        self._view = view
        if changed:
            self.version += 1
        return view
