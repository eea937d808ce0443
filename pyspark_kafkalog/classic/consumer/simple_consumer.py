"""`SimpleConsumer`: fetches and offset look-ups at one broker, on either wire."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import msgspec

from pyspark_kafkalog.classic.consumer.stream import BatchSets, MessageSet, SetReader, V07Sets
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.connection07 import Connection07
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, commit_offsets, committed_offsets
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import KAFKA, ConnectorConfig, SimpleConsumerConfig
from pyspark_kafkalog.config.definition import INT_MAX, parse
from pyspark_kafkalog.errors import (
    ConnectionClosed,
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
    reason,
)
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, next_offset_after
from pyspark_kafkalog.formats.v07 import ENTRY_HEADER_BYTES
from pyspark_kafkalog.protocol.api import fetch, log_offsets
from pyspark_kafkalog.protocol.api.fetch import PartitionData
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.v07 import FetchRequest, MultiFetchRequest, OffsetsRequest
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_BROKER,
    PROTOCOL_07,
    PROTOCOL_08,
    IsolationLevel,
    TopicPartition,
)
from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup

_TIMES_SINCE = 1  # first version of ListOffsets with one offset per time instead of segment offsets
_TRANSACTIONS_SINCE = 2  # first version with isolation levels; older brokers have no transactions

T = TypeVar("T")

FETCH_SIZE = 300 * 1024  # in bytes; 0.7's ``fetch.size``

# Reopen a broken connection once, as 0.7's consumer does.
_ONCE_MORE = RetryPolicy(backoff_ms=20, backoff_max_ms=20, max_retries=1)


class FetchedSet(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    messages: Any
    sets: SetReader


class BrokerReader07:
    """*Not thread-safe.* Reads from one broker over one connection, on 0.7's wire."""

    def __init__(
        self, host: str, port: int, config: SimpleConsumerConfig, *, deadline: Deadline, clock: Clock
    ) -> None:
        self.connection = Connection07(host, port, config, deadline=deadline, clock=clock)
        self.peer = self.connection.peer

    def fetch(self, wanted: Sequence[FetchRequest], deadline: Deadline) -> list[FetchedSet]:
        if len(wanted) == 1:
            responses: Sequence[Any] = [self.connection.request(wanted[0], deadline=deadline)]
        else:
            answer = self.connection.request(MultiFetchRequest(tuple(wanted)), deadline=deadline)
            _check(answer.error_code, f"{self.peer}: multifetch")
            responses = answer.responses
        if len(responses) != len(wanted):
            raise InvalidRequest(f"{self.peer}: {len(responses)} responses to a multifetch of {len(wanted)}")
        return [FetchedSet(one.error_code, one.messages, V07Sets()) for one in responses]

    def offsets_before(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        try:
            answer = self.connection.request(request, deadline=deadline)
        except ConnectionClosed as e:
            raise ConnectionClosed(
                f"{e}; a broker of 0.7 also does this for a partition that it does not have, "
                f"here {request.topic}-{request.partition}"
            ) from e
        _check(answer.error_code, f"{self.peer}: offsets of {request.topic}-{request.partition}")
        return list(answer.offsets)


class BrokerReader08:
    def __init__(
        self, host: str, port: int, config: SimpleConsumerConfig, *, deadline: Deadline, clock: Clock
    ) -> None:
        self.connection = Connection(
            host, port, config.for_todays_wire((host, port)), deadline=deadline, clock=clock
        )
        self._isolation = config.isolation
        self.peer = self.connection.peer

    def fetch(self, wanted: Sequence[FetchRequest], deadline: Deadline) -> list[FetchedSet]:
        # A request may name a partition once only; duplicates go into further requests.
        left, sets = dict(enumerate(wanted)), {}
        while left:
            taken: dict[tuple[str, int], int] = {}
            for place, one in left.items():
                taken.setdefault((one.topic, one.partition), place)
            answers = self._ask([left[place] for place in taken.values()], deadline)
            for key, place in taken.items():
                if key not in answers:
                    raise InvalidRequest(f"{self.peer}: the fetch response lacks {key[0]}-{key[1]}")
                sets[place] = self._brought(wanted[place], answers[key], deadline)
                del left[place]
        return [sets[place] for place in range(len(wanted))]

    def _brought(self, one: FetchRequest, answer: PartitionData, deadline: Deadline) -> FetchedSet:
        data, high_watermark = memoryview(answer.records or b""), answer.high_watermark
        end = next_offset_after(data, one.offset, ExpectedOffsets.of_answer(one.offset, -1))
        if 0 <= high_watermark < end:
            # Apache Kafka reads the high watermark before the data, so newer records may lie above it. With
            # read_committed the data ends at the last stable offset, which LATEST then returns.
            latest = OffsetsRequest(one.topic, one.partition, LATEST_TIMESTAMP, 1)
            high_watermark = max(high_watermark, *self.offsets_before(latest, deadline))
        aborted = None
        if self._isolation is IsolationLevel.READ_COMMITTED:
            listed = answer.aborted_transactions or ()
            aborted = tuple((one.producer_id, one.first_offset) for one in listed)
        return FetchedSet(answer.error_code, data, BatchSets(high_watermark, aborted))

    def _ask(
        self, wanted: Sequence[FetchRequest], deadline: Deadline
    ) -> dict[tuple[str, int], PartitionData]:
        topics: dict[str, list[fetch.FetchPartition]] = defaultdict(list)
        for one in wanted:
            topics[one.topic].append(
                fetch.FetchPartition(
                    partition=one.partition, fetch_offset=one.offset, partition_max_bytes=one.max_bytes
                )
            )
        request = fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=min(sum(one.max_bytes for one in wanted), (1 << 31) - 1),
            isolation_level=int(self._isolation),
            topics=tuple(fetch.FetchTopic(topic=name, partitions=tuple(p)) for name, p in topics.items()),
        )
        answer = self.connection.request(request, deadline=deadline)
        _check(answer.error_code, f"{self.peer}: fetch")
        return {
            (topic.topic, part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }

    def offsets_before(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        """As version 0 of ListOffsets: later ones know ends, and of a time only what comes after it."""
        low, high = self.connection.served(ApiKey.LIST_OFFSETS) or (0, 0)
        at_end = request.timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
        if high >= _TIMES_SINCE and at_end and (request.max_offsets == 1 or low > 0):
            times = [LATEST_TIMESTAMP, EARLIEST_TIMESTAMP][request.timestamp == EARLIEST_TIMESTAMP :]
            asked = times[: request.max_offsets]
            return list(dict.fromkeys(self._ask_offsets(request, time, deadline).offset for time in asked))
        if low > 0:
            raise UnsupportedVersion(
                f"{self.peer}: offsets before a time need ListOffsets 0, and the broker serves {low} to "
                f"{high}; Consumer.offsets_for_times returns the first at or after a time"
            )
        committed = self._isolation is IsolationLevel.READ_COMMITTED and high >= _TRANSACTIONS_SINCE
        count = INT_MAX if committed else request.max_offsets
        answer = self._ask_offsets(request, request.timestamp, deadline, count)
        if not committed:
            return list(answer.old_style_offsets)
        end = self._ask_offsets(request, LATEST_TIMESTAMP, deadline).offset
        capped = dict.fromkeys(min(offset, end) for offset in answer.old_style_offsets)
        return list(capped)[: request.max_offsets]

    def _ask_offsets(
        self, request: OffsetsRequest, timestamp: int, deadline: Deadline, count: int | None = None
    ) -> Any:
        """With a ``count`` by version 0."""
        tp = f"{request.topic}-{request.partition}"
        version = self.connection.version(ApiKey.LIST_OFFSETS) if count is None else 0
        isolation = int(self._isolation) if version >= _TRANSACTIONS_SINCE else 0
        wanted = log_offsets.ListOffsetsPartition(
            partition_index=request.partition,
            timestamp=timestamp,
            max_num_offsets=1 if count is None else count,
        )
        topic = log_offsets.ListOffsetsTopic(name=request.topic, partitions=(wanted,))
        asked = log_offsets.ListOffsetsRequest(isolation_level=isolation, topics=(topic,))
        ticket = self.connection.send(asked, deadline=deadline, version=version)
        answer: Any = self.connection.receive(ticket, deadline=deadline)
        part = next((part for topic in answer.topics for part in topic.partitions), None)
        if part is None:
            raise InvalidRequest(f"{self.peer}: the ListOffsets response lacks {tp}")
        _check(part.error_code, f"{self.peer}: offsets of {tp}")
        return part


BrokerReader = BrokerReader07 | BrokerReader08


class SimpleConsumer:
    """*Thread-safe: a lock is held during each call.* Reads from one broker over one connection.

        with SimpleConsumer("localhost", 9093) as consumer:
            for payload, next_offset in consumer.fetch("clicks", 0, offset=0):
                ...

    ``config``: see `SimpleConsumerConfig`, with ``zookeeper.connect`` `ConnectorConfig`; ``protocol`` is 0.7
    by default. Offsets of 0.7 are byte positions, so take the next one from the message. The first call
    connects; a broken connection is reopened once per call. All calls raise `ConnectionLost` if the broker is
    unreachable or does not answer within ``socket.timeout.ms``. With ``isolation.level=read_committed`` a log
    ends before its first open transaction.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Mapping[str, object] | SimpleConsumerConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(config, SimpleConsumerConfig):
            names = config or {}
            with_zookeeper = "zookeeper.connect" in names or "zk.connect" in names
            config = parse(
                ConnectorConfig if with_zookeeper else SimpleConsumerConfig, names, source="consumer"
            )
        self.config = config
        self._host, self._port, self._clock = host, port, clock
        self._lock = threading.Lock()
        self._reader: BrokerReader | None = None

    def fetch(self, topic: str, partition: int, offset: int, max_size: int = FETCH_SIZE) -> MessageSet:
        """The messages from ``offset`` on, at most ``max_size`` bytes; empty at the log's end.

        If the first message does not fit, retries with up to ``max.message.size``. A broker of 0.7 also
        returns an empty set for an unknown topic.

        Raises:
            OffsetOutOfRange: the offset is not in the log, whose range it names.
            UnknownTopicOrPartition: no such partition.
            MessageTooLarge: the message at ``offset`` exceeds ``max.message.size``.
            CorruptMessage: no message begins at ``offset``.
            ServerError: INVALID_FETCH_SIZE for a negative size, or another broker error.
        """
        (messages,) = self.multifetch([FetchRequest(topic, partition, offset, max_size)])
        if messages.error is not None:
            raise messages.error
        return messages

    def fetch_bytes(self, topic: str, partition: int, offset: int, max_size: int) -> memoryview:
        """Up to ``max_size`` unchecked bytes of the log from ``offset`` on, to search for the next message.
        Raises as `fetch`, but never for the content.
        """
        one = FetchRequest(topic, partition, offset, max_size)

        def ask(reader: BrokerReader, deadline: Deadline) -> memoryview:
            answer = reader.fetch([one], deadline)[0]
            if answer.error_code != ErrorCode.NONE:
                raise self._failure(reader, one, answer.error_code, deadline)
            return memoryview(answer.messages)

        return self._call("fetching", ask)

    def multifetch(self, fetches: Iterable[FetchRequest]) -> list[MessageSet]:
        """Several fetches in one request; a failed one has ``error`` set in its result.

        Raises `ServerError` INVALID_FETCH_SIZE for a negative size.
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
        """Up to ``max_offsets`` start offsets of segments written before ``time``, largest first.

        ``time`` is in milliseconds since the epoch. `LATEST_TIMESTAMP` (-1) puts the log's end first,
        `EARLIEST_TIMESTAMP` (-2) returns only the start. Kafka 4 knows no segments: it returns end and start.

        Raises:
            UnknownTopicOrPartition, ServerError: the broker's error.
            ConnectionLost: unreachable, or the connection was closed; 0.7 refuses a partition that way.
            InvalidRequest: ``max_offsets`` is negative.
            UnsupportedVersion: a time, and the broker is Kafka 4 or newer.
        """
        if max_offsets < 0:
            raise InvalidRequest(
                f"{topic}-{partition}: max_offsets={max_offsets} is not allowed; allowed: 0 or more"
            )
        request = OffsetsRequest(topic, partition, time, max_offsets)
        return self._call("looking up offsets", lambda reader, limit: reader.offsets_before(request, limit))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of ``group`` in Kafka, or with ``zookeeper.connect`` by ``offsets.storage``.

        In ZooKeeper, partitions of 0.7 have a ``broker``. Raises `UnsupportedVersion` for Kafka with
        ``protocol`` 0.7; else as `client.groups.commit_offsets`.
        """
        in_zookeeper = self._zookeeper_group(group, offsets)
        if self._in_kafka:
            self._with_cluster(lambda cluster: commit_offsets(cluster, group, offsets))
        if in_zookeeper is not None:
            in_zookeeper.commit(offsets)

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Offsets of ``group``, of ``partitions`` or all; with ``dual.commit.enabled`` the larger ones.

        Raises as `commit_offsets`.
        """
        wanted = None if partitions is None else list(partitions)
        in_zookeeper = self._zookeeper_group(group, wanted or ())
        found: dict[TopicPartition, CommittedOffset] = {}
        if self._in_kafka:
            found = self._with_cluster(lambda cluster: committed_offsets(cluster, group, wanted))
        for tp, offset in ({} if in_zookeeper is None else in_zookeeper.offsets(wanted)).items():
            if tp not in found or found[tp].offset < offset:
                found[tp] = CommittedOffset(offset, -1, "")
        return found

    @property
    def _in_kafka(self) -> bool:
        config = self.config
        return (
            not isinstance(config, ConnectorConfig) or config.dual_commit or config.offsets_storage == KAFKA
        )

    def _zookeeper_group(self, group: str, partitions: Iterable[TopicPartition]) -> ZooKeeperGroup | None:
        config = self.config
        if not isinstance(config, ConnectorConfig) or (
            config.offsets_storage == KAFKA and not config.dual_commit
        ):
            return None
        of_07 = config.protocol == PROTOCOL_07
        for tp in partitions:
            if (tp.broker != NO_BROKER) is not of_07:
                raise InvalidRequest(
                    f"{tp}: with protocol={config.protocol} a partition has "
                    f"{'a broker: TopicPartition(topic, partition, broker)' if of_07 else 'no broker'}"
                )
        return ZooKeeperGroup(config, group, config.protocol)

    def close(self) -> None:
        """Closes the connection; the next call opens another one."""
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
            of_07 = self.config.protocol == PROTOCOL_07
            make: type[BrokerReader] = BrokerReader07 if of_07 else BrokerReader08
            self._reader = make(self._host, self._port, self.config, deadline=deadline, clock=self._clock)
        return self._reader

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.connection.close()

    def _set(
        self, reader: BrokerReader, one: FetchRequest, answer: FetchedSet, deadline: Deadline
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
        self, reader: BrokerReader, one: FetchRequest, answer: FetchedSet, deadline: Deadline
    ) -> FetchedSet:
        """``answer``, or that of a larger fetch if it has no whole entry."""
        limit = max(self.config.max_message_size + ENTRY_HEADER_BYTES, one.max_bytes)
        where, size = f"{reader.peer}: {_name(one)} at offset {one.offset}", one.max_bytes
        while data := memoryview(answer.messages):
            claimed = answer.sets.first_size(data)
            if claimed is not None and claimed <= len(data):
                break
            if claimed is not None and claimed > limit:
                raise MessageTooLarge(
                    f"{where}: an entry of {claimed} bytes, or no entry begins here; max.message.size is "
                    f"{self.config.max_message_size}"
                )
            if len(data) < size:
                # The response had room for more, so the log or a segment ends here.
                raise CorruptMessage(
                    f"{where}: the log ends after {len(data)} bytes, within an entry: no entry begins "
                    "here, or it was cut"
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
            why = reason(code, "Read", topic=one.topic)
            return error_for(code, f"{reader.peer}: {_name(one)} at offset {one.offset}: {why}")
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
                f"{peer_name(self._host, self._port)}: brokers of protocol={self.config.protocol} store no "
                f"offsets; ZooKeeper does, or a broker of protocol={PROTOCOL_08}"
            )
        config = self.config.for_todays_wire((self._host, self._port))
        with self._lock, closing(Cluster(config, clock=self._clock)) as cluster:
            return ask(cluster)


def _check(code: ErrorCode, doing: str) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, f"{doing}: {code.name}")


def _name(one: FetchRequest) -> str:
    return f"{one.topic}-{one.partition}"
