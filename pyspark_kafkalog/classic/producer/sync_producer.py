"""`SyncProducer`: sends to one broker, on either wire, over one connection; allows for a load balancer."""

from __future__ import annotations

import logging
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.connection07 import Connection07
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import SyncProducerConfig, producer_config
from pyspark_kafkalog.errors import (
    ConnectionClosed,
    ConnectionLost,
    ErrorCode,
    InvalidRecord,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    error_for,
    reason,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import ENTRY_HEADER_BYTES, encode_set
from pyspark_kafkalog.producer.encoder import BATCH_HEADER_BYTES, NOBODY, Encoding, encoding_for
from pyspark_kafkalog.protocol import v07
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.types import (
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    PROTOCOL_07,
    PROTOCOL_08,
    NewRecord,
    TopicPartition,
)

_NO_LEADER = -1

logger = logging.getLogger(__name__)


class ProducerRequest(msgspec.Struct, frozen=True):
    """Messages for one partition; with `ANY_PARTITION` the broker chooses, on today's wire at random.

    A message is its payload, or a `NewRecord` for the other fields of today's wire.
    """

    topic: str
    messages: Sequence[bytes | NewRecord]
    partition: int = ANY_PARTITION
    codec: Codec = Codec.NONE


class BrokerWriter07:
    """*Not thread-safe.* Writes to one broker over one connection, on 0.7's wire."""

    def __init__(
        self, host: str, port: int, config: SyncProducerConfig, *, deadline: Deadline, clock: Clock
    ) -> None:
        self.connection = Connection07(host, port, config, deadline=deadline, clock=clock)
        self._limit, self._acks = config.max_message_size, config.required_acks
        self._magic = config.message_magic
        self.peer = self.connection.peer

    @property
    def unconfirmed(self) -> int:
        return self.connection.unconfirmed

    def write(self, requests: Sequence[ProducerRequest], deadline: Deadline) -> None:
        """With ``request.required.acks`` waits until the broker has them."""
        produces = [
            v07.ProduceRequest(
                r.topic, r.partition, self._encoded(r, [_payload(r.topic, message) for message in r.messages])
            )
            for r in requests
            if r.messages
        ]
        if not produces:
            return
        for one in produces:
            v07.check_topic(one.topic)
        request = produces[0] if len(produces) == 1 else v07.MultiProduceRequest(tuple(produces))
        self.connection.produce(request, deadline=deadline)
        if self._acks:
            self.confirm(deadline)

    def confirm(self, deadline: Deadline) -> None:
        try:
            self.connection.confirm(deadline)
        except ConnectionClosed as e:
            raise ConnectionClosed(
                f"{e}; a broker of 0.7 also does this for a partition that it does not have, and messages "
                "that it cannot read: what was sent last may not be stored"
            ) from e

    def look(self) -> None:
        """Raises `ConnectionLost` if the broker has closed the connection; does not wait."""
        self.connection.look()

    def _encoded(self, request: ProducerRequest, payloads: Sequence[bytes]) -> bytes:
        """A compressed set above the limit is split."""
        if request.codec is Codec.NONE:
            largest = max(map(len, payloads))
            if largest > self._limit:
                raise _too_large(self.peer, request.topic, largest, self._limit)
            return encode_set(payloads, magic=self._magic)
        data = encode_set(payloads, codec=request.codec, magic=self._magic)
        if len(data) - ENTRY_HEADER_BYTES <= self._limit:
            return data
        if len(payloads) == 1:
            raise _too_large(self.peer, request.topic, len(data) - ENTRY_HEADER_BYTES, self._limit)
        half = len(payloads) // 2
        return self._encoded(request, payloads[:half]) + self._encoded(request, payloads[half:])


class BrokerWriter08:
    """*Not thread-safe.* The wire since 0.8, to the leader. Brokers before 0.11 get message sets."""

    unconfirmed = 0

    def __init__(
        self, host: str, port: int, config: SyncProducerConfig, *, deadline: Deadline, clock: Clock
    ) -> None:
        client = config.for_todays_wire((host, port))
        self.connection = Connection(host, port, client, deadline=deadline, clock=clock)
        self._retry = RetryPolicy.of(client)
        self._limit, self._acks = config.max_message_size, config.required_acks
        self._address, self._clock = (host, port), clock
        self._partitions: dict[str, list[int]] = {}
        self.peer = self.connection.peer

    def write(self, requests: Sequence[ProducerRequest], deadline: Deadline) -> None:
        batches: dict[TopicPartition, list[bytes]] = defaultdict(list)
        for request in requests:
            encoding = encoding_for(self.connection, request.codec)
            chunks = list(self._chunks(request, encoding))
            if not chunks:
                continue
            encoding.produce_version(self.connection)
            # Needed for a given partition too: this look-up creates a missing topic.
            known = self._known(request.topic, deadline)
            chosen = random.choice(known) if request.partition == ANY_PARTITION else request.partition
            tp = TopicPartition(request.topic, chosen)
            batches[tp] += [self._batch(chunk, encoding) for chunk in chunks]
        # A request may have only one batch per partition.
        while waiting := {tp: left.pop(0) for tp, left in batches.items() if left}:
            self._send(waiting, deadline)

    def confirm(self, deadline: Deadline) -> None: ...

    def look(self) -> None:
        self.connection.receive_now()

    def _chunks(self, request: ProducerRequest, encoding: Encoding) -> Iterator[list[NewRecord]]:
        chunk: list[NewRecord] = []
        size = BATCH_HEADER_BYTES
        for message in request.messages:
            record = message if isinstance(message, NewRecord) else NewRecord(message)
            content = len(record.value or b"") + len(record.key or b"")
            own = encoding.size_bound(content, record.headers, True)
            if record.headers and not encoding.has_headers:
                raise InvalidRecord(
                    f"{self.peer}: {request.topic}: brokers before Kafka 0.11 have no headers, and a message "
                    "has some"
                )
            if content > self._limit:
                raise _too_large(self.peer, request.topic, content, self._limit)
            if chunk and size + own > self._limit:
                yield chunk
                chunk, size = [], BATCH_HEADER_BYTES
            chunk.append(record)
            size += own
        if chunk:
            yield chunk

    def _batch(self, records: Sequence[NewRecord], encoding: Encoding) -> bytes:
        now = self._clock.time_ms()
        return encoding.encode(
            [record.value for record in records],
            [record.key for record in records],
            [record.timestamp if record.timestamp != NO_TIMESTAMP else now for record in records],
            [record.headers for record in records],
            NOBODY,
        )

    def _send(self, batches: dict[TopicPartition, bytes], deadline: Deadline) -> None:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for tp, data in batches.items():
            topics[tp.topic].append(PartitionProduceData(index=tp.partition, records=data))
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=max(int(deadline.left * 1000), 1),
            topic_data=tuple(TopicProduceData(name=n, partition_data=tuple(p)) for n, p in topics.items()),
        )
        version = encoding_for(self.connection, Codec.NONE).produce_version(self.connection)
        ticket = self.connection.send(request, deadline=deadline, version=version)
        answer: Any = self.connection.receive(ticket, deadline=deadline)
        parts = {
            TopicPartition(topic.name, part.index): part
            for topic in answer.responses
            for part in topic.partition_responses
        }
        for tp in batches:
            part = parts.get(tp)
            if part is None:
                raise InvalidRequest(f"{self.peer}: the produce response lacks {tp}")
            if part.error_code != ErrorCode.NONE:
                self._partitions.pop(tp.topic, None)
                why = reason(part.error_code, "Write", topic=tp.topic, said=part.error_message)
                raise error_for(part.error_code, f"{self.peer}: {tp}: {why}")

    def _known(self, topic: str, deadline: Deadline) -> list[int]:
        attempts = Attempts(self._retry, deadline, doing=f"looking up topic {topic}", clock=self._clock)
        while topic not in self._partitions:
            try:
                self._partitions[topic] = self._ask(topic, deadline)
            except KafkaError as e:
                if self.connection.broken:
                    raise
                attempts.failed(e)
        return self._partitions[topic]

    def _ask(self, topic: str, deadline: Deadline) -> list[int]:
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=True)
        answer: Any = self.connection.request(request, deadline=deadline)
        metadata = next((t for t in answer.topics if t.name == topic), None)
        if metadata is None or metadata.error_code != ErrorCode.NONE:
            code = metadata.error_code if metadata is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise error_for(code, f"{self.peer}: topic {topic}: {reason(code, 'Describe', topic=topic)}")
        led = {p.partition_index: p.leader_id for p in metadata.partitions if p.leader_id != _NO_LEADER}
        ours = {broker.node_id for broker in answer.brokers if (broker.host, broker.port) == self._address}
        chosen = [number for number, leader in led.items() if leader in ours] or list(led)
        if not ours and len(set(led.values())) > 1:
            chosen = self._led_here(topic, led, deadline)
        if not chosen:
            code = ErrorCode.LEADER_NOT_AVAILABLE
            raise error_for(code, f"{self.peer}: topic {topic}: no partition has a leader")
        return sorted(chosen)

    def _led_here(self, topic: str, partitions: Iterable[int], deadline: Deadline) -> list[int]:
        """Behind a load balancer no address says which broker this is: only a leader looks up offsets."""
        wanted = tuple(
            ListOffsetsPartition(partition_index=number, timestamp=LATEST_TIMESTAMP) for number in partitions
        )
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=topic, partitions=wanted),))
        answer: Any = self.connection.request(request, deadline=deadline)
        found = [part for topic in answer.topics for part in topic.partitions]
        led = [part.partition_index for part in found if part.error_code == ErrorCode.NONE]
        if not led:
            code = found[0].error_code if found else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise error_for(
                code, f"{self.peer}: the broker behind this address leads no partition of topic {topic}: "
                f"{code.name}; ClassicProducer sends to the leaders",
            )  # fmt: skip
        return led


BrokerWriter = BrokerWriter07 | BrokerWriter08


def _too_large(peer: str, topic: str, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"{peer}: {topic}: a message of {size} bytes is above max.message.size={limit}")


def _payload(topic: str, message: bytes | NewRecord) -> bytes:
    if not isinstance(message, NewRecord):
        return message
    if message.value is None or message.key is not None or message.headers:
        raise InvalidRecord(
            f"{topic}: messages of protocol={PROTOCOL_07} have no key, no headers and no null value; "
            f"protocol={PROTOCOL_08} has them"
        )
    return message.value


class SyncProducer:
    """*Thread-safe: a lock is held during each send.* Sends to one broker over one connection.

        with SyncProducer("localhost", 9093) as producer:
            producer.send("clicks", [b"one", b"two"])

    ``config``: see `SyncProducerConfig`. Nothing is retried: after a `ConnectionLost` it is unknown what was
    stored. Connects on the first send, and again if the broker has closed the connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Mapping[str, object] | SyncProducerConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connects on the first send."""
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
        """Sends messages to one partition, compressed together with ``codec``. Raises as `multi_send`."""
        self.multi_send([ProducerRequest(topic, messages, partition, codec)])

    def multi_send(self, requests: Sequence[ProducerRequest]) -> None:
        """Sends messages to several partitions in one request.

        Raises:
            MessageTooLarge, InvalidRecord, InvalidTopic: too large, fields that the wire lacks, a bad name;
                nothing was sent.
            ConnectionLost: unknown what was stored, with ``request.required.acks=0`` of earlier requests too.
            KafkaError: another broker error, or the producer is closed.
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
                if writer.connection.broken:
                    self._drop()
            self._renew_if_due(writer, deadline)

    def confirm(self) -> None:
        """Waits until the broker has handled everything sent; for ``request.required.acks=0``.

        Raises `ConnectionLost`: the connection was closed; unconfirmed requests may be lost.
        """
        with self._lock:
            if self._writer is None or not self._writer.unconfirmed:
                return
            try:
                self._writer.confirm(self._deadline())
            finally:
                if self._writer.connection.broken:
                    self._drop()

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
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
        """Reopened if the broker has closed it since the last send."""
        if self._writer is not None:
            try:
                self._writer.look()
                return self._writer
            except KafkaError as e:
                doubtful = self._writer.unconfirmed
                self._drop()
                if doubtful:
                    raise ConnectionLost(
                        f"{e}; it is unknown whether the last {doubtful} request(s) were stored, "
                        "and this one was not sent"
                    ) from e
                logger.info("%s: connecting again: %s", self.peer, e)
        make: type[BrokerWriter] = BrokerWriter07 if self.config.protocol == PROTOCOL_07 else BrokerWriter08
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
            writer.connection.close()
