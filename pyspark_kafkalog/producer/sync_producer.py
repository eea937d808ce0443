"""The producer of one broker that sends at once, over one connection: it also works behind a balancer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer07 import SyncProducerConfig, producer_config
from pyspark_kafkalog.errors import ConnectionLost, KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.producer.broker_writer import WRITERS, BrokerWriter, ProducerRequest
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.types import NewRecord

logger = logging.getLogger(__name__)


class SyncProducer:
    """*Thread-safe: a lock is held over each send.* Sends to one broker, over one connection.

        with SyncProducer("localhost", 9093) as producer:
            producer.send("clicks", [b"one", b"two"])

    ``config`` has the properties of `SyncProducerConfig`. Nothing is repeated: after a `ConnectionLost` it is
    not known what was stored, and the caller decides. The connection is made by the first send, and anew when
    the broker has closed it in between.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Mapping[str, object] | SyncProducerConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Nothing is connected yet. Raises `InvalidConfig` for a property that is not allowed."""
        self.config: SyncProducerConfig = producer_config(SyncProducerConfig, config)
        self.peer = peer_name(host, port)
        self._host, self._port, self._clock = host, port, clock
        self._lock = threading.Lock()
        self._writer: BrokerWriter | None = None
        self._sent = 0
        self._connected_at = 0.0
        self._closed = False

    def send(
        self,
        topic: str,
        messages: Sequence[bytes | NewRecord],
        partition: int = ANY_PARTITION,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Send messages to one partition, compressed together with ``codec``. Raises as `multi_send`."""
        self.multi_send([ProducerRequest(topic, messages, partition, codec)])

    def multi_send(self, requests: Sequence[ProducerRequest]) -> None:
        """Send messages to several partitions by one request.

        Raises:
            MessageTooLarge: a message is above ``max.message.size``; nothing was sent.
            InvalidRecord: a message has what the wire cannot carry; nothing was sent.
            InvalidTopic: a topic's name is not allowed; nothing was sent.
            ConnectionLost: the broker cannot be reached, or has closed the connection: it is not known what
                was stored. With ``request.required.acks=0`` that may be about earlier requests.
            KafkaError: what else the broker answers, or the producer is closed.
        """
        with self._lock:
            if self._closed:
                raise KafkaError(f"{self.peer}: the producer is closed")
            deadline = self._deadline()
            writer = self._usable(deadline)
            try:
                writer.write(requests, deadline)
            finally:
                self._sent += 1
                if writer.broken:
                    self._drop()
            self._renew_if_due(writer, deadline)

    def confirm(self) -> None:
        """Return when the broker has dealt with all that was sent: of use with ``request.required.acks=0``.

        Raises:
            ConnectionLost: it closed the connection; requests not confirmed before may be lost.
        """
        with self._lock:
            if self._writer is None or not self._writer.unconfirmed:
                return
            try:
                self._writer.confirm(self._deadline())
            finally:
                if self._writer.broken:
                    self._drop()

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deadline(self) -> Deadline:
        return Deadline.after(self.config.socket_timeout_ms / 1000, self._clock)

    def _usable(self, deadline: Deadline) -> BrokerWriter:
        """The connection, made anew if the broker has closed it since the last send."""
        if self._writer is not None:
            try:
                self._writer.look()
                return self._writer
            except KafkaError as e:
                doubtful = self._writer.unconfirmed
                self._drop()
                if doubtful:
                    raise ConnectionLost(
                        f"{e}; of the last {doubtful} request(s) it is not known whether they were stored, "
                        "and this one was not sent"
                    ) from e
                logger.info("%s: connecting again: %s", self.peer, e)
        make = WRITERS[self.config.protocol]
        self._writer = make(self._host, self._port, self.config, deadline=deadline, clock=self._clock)
        self._sent, self._connected_at = 0, self._clock.monotonic()
        return self._writer

    def _renew_if_due(self, writer: BrokerWriter, deadline: Deadline) -> None:
        age_ms = (self._clock.monotonic() - self._connected_at) * 1000
        longest_ms = self.config.reconnect_time_interval_ms
        if self._sent < self.config.reconnect_interval and (longest_ms < 0 or age_ms < longest_ms):
            return
        try:
            if writer.unconfirmed:
                writer.confirm(deadline)
        finally:
            self._drop()

    def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
