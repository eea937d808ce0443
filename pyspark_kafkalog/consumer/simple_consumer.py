"""The consumer of one broker, without state: the caller says from where, and keeps what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, commit_offsets, committed_offsets
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client07 import PROTOCOL_08, Client07Config
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.broker_reader import READERS, BrokerReader, Brought
from pyspark_kafkalog.consumer.message_set import MessageSet
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    FrameTooLarge,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    UnsupportedVersion,
    error_for,
)
from pyspark_kafkalog.formats.v07 import ENTRY_HEADER_BYTES
from pyspark_kafkalog.protocol.v07 import FetchRequest, OffsetsRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

T = TypeVar("T")

FETCH_SIZE = 300 * 1024
"""Bytes of a fetch unless told otherwise: 0.7's ``fetch.size``."""

_ONCE_MORE = RetryPolicy(backoff_ms=20, backoff_max_ms=20, max_retries=1)
"""A connection that broke is made anew once, as 0.7's own consumer does it."""


class SimpleConsumer:
    """*Thread-safe: a lock is held over each call.* Reads from one broker, over one connection.

        with SimpleConsumer("localhost", 9093) as consumer:
            for payload, next_offset in consumer.fetch("clicks", 0, offset=0):
                ...

    ``config`` has the properties of `Client07Config`; ``protocol`` is one of them, and by default 0.7's.
    There an offset is a byte's position and the next one is known from the messages alone. A connection that
    breaks is made anew once within a call. The connection is made by the first call.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Mapping[str, object] | Client07Config | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Nothing is connected yet. Raises `InvalidConfig` for a property that is not allowed."""
        if not isinstance(config, Client07Config):
            config = parse(Client07Config, config or {}, source="consumer")
        self.config = config
        self._host, self._port, self._clock = host, port, clock
        self._lock = threading.Lock()
        self._reader: BrokerReader | None = None

    def fetch(self, topic: str, partition: int, offset: int, max_size: int = FETCH_SIZE) -> MessageSet:
        """The messages from ``offset`` on, as far as they are there and fit ``max_size`` bytes.

        Where not even the first one fits, the size is doubled until it does, up to ``max.message.size``. A
        set may be empty: at the log's end, and for a topic that a broker of 0.7 has not heard of.

        Raises:
            OffsetOutOfRange: the log does not hold the offset; it names the range it has.
            UnknownTopicOrPartition: no such partition.
            MessageTooLarge: the message at ``offset`` is above ``max.message.size``.
            CorruptMessage: no message begins at ``offset``.
            ServerError: INVALID_FETCH_SIZE for a size below 0, or what else the broker answers.
            ConnectionLost: the broker cannot be reached, or gives no answer in time.
        """
        found = self.multifetch([FetchRequest(topic, partition, offset, max_size)])[0]
        if found.error is not None:
            raise found.error
        return found

    def fetch_bytes(self, topic: str, partition: int, offset: int, max_size: int) -> memoryview:
        """The bytes of the log from ``offset`` on, whatever they are: for those who look for where the next
        message begins. At most ``max_size``. Raises as `fetch`, but that nothing in them is wrong.
        """
        one = FetchRequest(topic, partition, offset, max_size)

        def ask(reader: BrokerReader, deadline: Deadline) -> memoryview:
            answer = reader.fetch([one], deadline)[0]
            if answer.error_code != ErrorCode.NONE:
                raise self._failure(reader, one, answer.error_code, deadline)
            return memoryview(answer.messages)

        return self._call("fetching", ask)

    def multifetch(self, fetches: Iterable[FetchRequest]) -> list[MessageSet]:
        """Several fetches by one request: a set for each, in order; what failed has its ``error``.

        Raises:
            ServerError: INVALID_FETCH_SIZE for a size below 0.
            ConnectionLost: as `fetch`.
        """
        wanted = list(fetches)
        for one in wanted:
            if one.max_bytes < 0:
                text = f"{_name(one)}: a fetch of {one.max_bytes} bytes; allowed: 0 or more"
                raise error_for(ErrorCode.INVALID_FETCH_SIZE, text)
        if not wanted:
            return []

        def ask(reader: BrokerReader, deadline: Deadline) -> list[MessageSet]:
            answers = reader.fetch(wanted, deadline)
            return [
                self._set(reader, one, answer, deadline) for one, answer in zip(wanted, answers, strict=True)
            ]

        return self._call("fetching", ask)

    def get_offsets_before(self, topic: str, partition: int, time: int, max_offsets: int = 1) -> list[int]:
        """At most ``max_offsets`` offsets at which a segment of the log begins, the largest first.

        ``time`` is in milliseconds since the epoch: only what was written before it. `LATEST_TIMESTAMP`
        (-1) puts the log's end in front of all of them, `EARLIEST_TIMESTAMP` (-2) is its start alone. On
        today's wire, which knows no segments: the end and the start, or the first offset at or after the
        time.

        Raises:
            UnknownTopicOrPartition, ServerError: what the broker answers.
            ConnectionLost: it cannot be reached, or closes the connection: so 0.7 refuses a partition.
            InvalidRequest: ``max_offsets`` is below 0.
        """
        if max_offsets < 0:
            raise InvalidRequest(f"{topic}-{partition}: {max_offsets} offsets cannot be asked for")
        request = OffsetsRequest(topic, partition, time, max_offsets)
        return self._call("looking up offsets", lambda reader, limit: reader.offsets_before(request, limit))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Have Kafka keep the offsets to be read next by ``group``; today's wire only.

        Raises:
            UnsupportedVersion: brokers of 0.7 keep no offsets: ZooKeeper does.
            KafkaError: as `client.groups.commit_offsets`.
        """
        with self._lock:
            self._with_cluster(lambda cluster: commit_offsets(cluster, group, offsets))

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What Kafka keeps for ``group``, for ``partitions`` or all of them. Raises as `commit_offsets`."""
        with self._lock:
            return self._with_cluster(lambda cluster: committed_offsets(cluster, group, partitions))

    def close(self) -> None:
        """Close the connection; the next call makes another one."""
        with self._lock:
            self._drop()

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, doing: str, ask: Callable[[BrokerReader, Deadline], T]) -> T:
        peer = peer_name(self._host, self._port)
        deadline = Deadline.after(self.config.socket_timeout_ms / 1000, self._clock)
        attempts = Attempts(_ONCE_MORE, deadline, doing=f"{peer}: {doing}", clock=self._clock)
        with self._lock:
            while True:
                try:
                    return ask(self._open(deadline), deadline)
                except ConnectionLost as e:
                    self._drop()
                    attempts.failed(e)
                except (InvalidRequest, FrameTooLarge):
                    self._drop()
                    raise

    def _open(self, deadline: Deadline) -> BrokerReader:
        if self._reader is None:
            make = READERS[self.config.protocol]
            self._reader = make(self._host, self._port, self.config, deadline=deadline, clock=self._clock)
        return self._reader

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _set(
        self, reader: BrokerReader, one: FetchRequest, answer: Brought, deadline: Deadline
    ) -> MessageSet:
        data, sets, error = memoryview(b""), answer.sets, None
        try:
            if answer.error_code != ErrorCode.NONE:
                raise self._failure(reader, one, answer.error_code, deadline)
            answer = self._with_one_whole(reader, one, answer, deadline)
            data, sets = memoryview(answer.messages), answer.sets
        except (ConnectionLost, InvalidRequest, FrameTooLarge):
            raise
        except KafkaError as e:
            error = e
        tp = TopicPartition(one.topic, one.partition)
        return MessageSet(
            tp, one.offset, data, sets, max_bytes=self.config.max_decompressed_bytes, error=error
        )

    def _with_one_whole(
        self, reader: BrokerReader, one: FetchRequest, answer: Brought, deadline: Deadline
    ) -> Brought:
        """``answer``, or what a larger fetch brings where that holds not one whole entry."""
        limit = max(self.config.max_message_size + ENTRY_HEADER_BYTES, one.max_bytes)
        where, size = f"{reader.peer}: {_name(one)} at offset {one.offset}", one.max_bytes
        while data := memoryview(answer.messages):
            claimed = answer.sets.first_size(data)
            if claimed is not None and claimed <= len(data):
                break
            if claimed is not None and claimed > limit:
                raise MessageTooLarge(
                    f"{where}: an entry of {claimed} bytes, or no entry begins there; max.message.size is "
                    f"{self.config.max_message_size}"
                )
            if len(data) < size:
                # The broker had room for more and has none: the log ends there, or a segment does.
                raise CorruptMessage(
                    f"{where}: the log ends {len(data)} bytes further on, within an entry: no entry begins "
                    "there, or it was cut"
                )
            size = min(2 * size, limit)
            again = FetchRequest(one.topic, one.partition, one.offset, size)
            answer = reader.fetch([again], deadline)[0]
            if answer.error_code != ErrorCode.NONE:
                raise self._failure(reader, one, answer.error_code, deadline)
        return answer

    def _failure(
        self, reader: BrokerReader, one: FetchRequest, code: ErrorCode, deadline: Deadline
    ) -> KafkaError:
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            return error_for(code, f"{reader.peer}: {_name(one)} at offset {one.offset}: {code.name}")
        first, last = (
            max(
                reader.offsets_before(OffsetsRequest(one.topic, one.partition, time, 1), deadline), default=-1
            )
            for time in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        return OffsetOutOfRange(f"{reader.peer}: {_name(one)}", one.offset, first, last)

    def _with_cluster(self, ask: Callable[[Cluster], T]) -> T:
        if self.config.protocol != PROTOCOL_08:
            raise UnsupportedVersion(
                f"{peer_name(self._host, self._port)}: brokers of protocol={self.config.protocol} keep no "
                f"offsets; ZooKeeper does, or a broker of protocol={PROTOCOL_08}"
            )
        cluster = Cluster(self.config.todays((self._host, self._port)), clock=self._clock)
        try:
            return ask(cluster)
        finally:
            cluster.close()


def _name(one: FetchRequest) -> str:
    return f"{one.topic}-{one.partition}"
