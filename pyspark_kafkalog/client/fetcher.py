"""Reads one partition's log, with the next fetch in flight while the caller decodes the last response.

No thread, and of batches only the headers are read, to know where the next fetch begins.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.client.discovery import NO_LEADER, Cluster, ReadReplica
from pyspark_kafkalog.client.fetch_session import fetch_topics
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.retry import Attempts, Deadline
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    RequestTimedOut,
    error_for,
    reason,
)
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, first_entry_is_whole, next_offset_after
from pyspark_kafkalog.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

logger = logging.getLogger(__name__)

POLL_TIMEOUT_MS = 120_000  # limit for one step with its retries: Spark's ``kafkaConsumer.pollTimeoutMs``
FIRST_FETCH_BYTES = 1 << 20  # small, so that the first records come soon; see `PartitionFetcher`
_OF_MANY_BYTES, _OF_ALL_BYTES = 64 << 10, 8 << 20
"""Limits for each partition, and for all, of a request for the first records of many."""
_CONSUMER = -1
_EMPTY_ANSWERS = 3  # in a row; after more it is not throttling: the broker finds no data at this offset


class Fetched(msgspec.Struct, frozen=True):
    """One response, with whole entries: the first may begin before ``offset``, the last may be cut.

    A corrupt first entry is left to decoding. ``data`` is valid until the next but one response. ``aborted``
    is empty under read_uncommitted. Offsets not sent are -1. ``follows``: the last entry ended at ``offset``.
    """

    data: memoryview
    offset: int
    next_offset: int
    aborted: tuple[tuple[int, int], ...]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    broker_id: int
    follows: bool = False

    @property
    def expected(self) -> ExpectedOffsets:
        return ExpectedOffsets.of_answer(self.offset, self.high_watermark, follows=self.follows)


@dataclass(slots=True)
class _FetchInFlight:
    connection: Connection
    ticket: Ticket
    offset: int
    replica: ReadReplica
    is_shared: bool = False
    """Whether its answer is of several partitions."""


class FirstAnswer(msgspec.Struct, frozen=True):
    """What `FirstFetches` has of one partition, for its `PartitionFetcher`."""

    flight: _FetchInFlight
    answer: PartitionData

    @property
    def end(self) -> int:
        """The offset after its last whole entry; that of its first if this is no sound entry."""
        data, offset = memoryview(self.answer.records), self.flight.offset
        try:
            return next_offset_after(data, offset, ExpectedOffsets.of_answer(offset, -1, follows=False))
        except KafkaError:
            return offset


class FirstFetches:
    """The first records of many partitions, 64 KiB of each at most, asked for by one request to each leader.
    *Not thread-safe*; other requests may be sent before the `answers` are taken.
    """

    def __init__(
        self, cluster: Cluster, starts: Mapping[TopicPartition, int], config: ConsumerConfig
    ) -> None:
        self._cluster, self._starts, self._config = cluster, starts, config
        self._sent: list[tuple[Connection, Ticket, dict[TopicPartition, ReadReplica]]] = []
        deadline = self._deadline()
        nodes: dict[int, dict[TopicPartition, ReadReplica]] = defaultdict(dict)
        for tp in starts:
            try:
                replica = cluster.read_replica(tp, config.client_rack, deadline=deadline)
            except ConnectionLost:
                return
            except KafkaError:
                continue
            nodes[replica.node_id][tp] = replica
        try:
            for node_id, asked in nodes.items():
                connection = cluster.connection(node_id, deadline)
                wanted = {tp: (replica, starts[tp]) for tp, replica in asked.items()}
                ticket = connection.send(_request_of_many(wanted, config), deadline=deadline)
                self._sent.append((connection, ticket, asked))
        except KafkaError as e:
            self._failed(e)

    def answers(self) -> dict[TopicPartition, FirstAnswer]:
        """A partition without records, for whatever reason, is left out: its own fetcher asks again."""
        found: dict[TopicPartition, FirstAnswer] = {}
        deadline = self._deadline()
        try:
            for connection, ticket, asked in self._sent:
                answer: FetchResponse = connection.receive(ticket, deadline=deadline)
                for topic in answer.responses:
                    for data in topic.partitions:
                        tp = TopicPartition(topic.topic, data.partition_index)
                        if data.error_code is ErrorCode.NONE and first_entry_is_whole(
                            memoryview(data.records or b"")
                        ):
                            flight = _FetchInFlight(
                                connection, ticket, self._starts[tp], asked[tp], is_shared=True
                            )
                            found[tp] = FirstAnswer(flight, data)
        except KafkaError as e:
            self._failed(e)
        return found

    def drop(self) -> None:
        """Leave the answers unread."""
        for connection, ticket, _ in self._sent:
            connection.drop(ticket)
        self._sent.clear()

    def _failed(self, error: KafkaError) -> None:
        logger.info("fetching the first records of %d partitions together: %s", len(self._starts), error)
        self.drop()

    def _deadline(self) -> Deadline:
        return Deadline.after(self._config.request_timeout_ms / 1000, self._cluster.clock)


def _request_of_many(
    asked: Mapping[TopicPartition, tuple[ReadReplica, int]], config: ConsumerConfig
) -> FetchRequest:
    wanted = {
        tp: FetchPartition(
            partition=tp.partition,
            current_leader_epoch=replica.leader.epoch,
            fetch_offset=start,
            partition_max_bytes=_OF_MANY_BYTES,
        )
        for tp, (replica, start) in asked.items()
    }
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=min(_OF_ALL_BYTES, config.fetch_max_bytes),
        isolation_level=int(config.isolation),
        topics=fetch_topics(wanted),
        rack_id=min(replica.rack for replica, _ in asked.values()),
    )


class PartitionFetcher:
    """*Not thread-safe*; the thread also owns the cluster. Iterates over `Fetched`.

    Reads ``[start, end)``; the last response may reach beyond ``end``. With ``client.rack`` it reads where
    the leader says, and after a failure there from the leader. After a lost connection or a moved leader it
    continues at the first offset not yet returned. Each step has ``poll_timeout_ms``. Each fetch
    doubles in size up to ``max.partition.fetch.bytes`` or the estimated rest, as its cost hardly depends on
    size. A step raises `OffsetOutOfRange` with the log's range, `RequestTimedOut`, `MessageTooLarge` (an old
    broker does not send a batch above ``fetch.max.bytes``), and `CorruptMessage` if the broker reports it
    twice, or there was no progress and decoding found no fault.
    """

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        config: ConsumerConfig,
        poll_timeout_ms: int = POLL_TIMEOUT_MS,
        for_corrupt: bool = False,
        first: FirstAnswer | None = None,
    ) -> None:
        """``for_corrupt``: to read past a corrupt entry; fetches full size and returns everything. ``first``
        is what is there already from ``start`` on.
        """
        self.tp, self.end = tp, end
        self._cluster, self._config = cluster, config
        self.position = start  # the first offset that has not been returned, or where `advance` moved to
        self._ended_at = -1  # end of the last whole entry that was returned
        self._stuck_at = -1  # offset at which the last response made no progress
        self._poll_timeout_ms = poll_timeout_ms
        self._limit = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        self._size = self._limit if for_corrupt else min(self._limit, FIRST_FETCH_BYTES)
        self._for_corrupt = for_corrupt
        self._flight: _FetchInFlight | None = None
        self._first = first
        self._closed = False
        self._given: deque[tuple[Connection, object]] = deque()
        """Frames of the last two responses; their memory is reused once the caller is done."""

    def advance(self, next_offset: int) -> None:
        if next_offset != self.position:
            self._drop_flight()
            self.position = next_offset

    def close(self) -> None:
        """Drop the fetch in flight and end the iteration. The cluster's connections stay open."""
        self._drop_flight()
        self._closed = True

    def __iter__(self) -> Iterator[Fetched]:
        return self

    def __next__(self) -> Fetched:
        if len(self._given) > 1:
            connection, frame = self._given.popleft()
            if isinstance(frame, bytearray):
                connection.transport.recycle(frame)
        if self.position == self._stuck_at < self.end:
            raise CorruptMessage(f"{self.tp}: the data at offset {self.position} is not a valid entry")
        deadline = Deadline.after(self._poll_timeout_ms / 1000, self._cluster.clock)
        attempts = self._cluster.retrying(f"fetching {self.tp} at offset {self.position}", deadline)
        empty_answers = 0
        while self.position < self.end and not self._closed:
            try:
                first, self._first = self._first, None
                answer = self._answer(attempts.deadline) if first is None else (first.flight, first.answer)
                fetched = self._take(*answer, attempts.deadline)
            except KafkaError as e:
                self._recover(e, attempts)
                continue
            if fetched is None and self._is_sent_elsewhere(*answer):
                continue
            attempts.succeeded()
            if fetched is not None:
                if self.position > fetched.offset and not self._for_corrupt:
                    self._send_ahead(attempts.deadline)
                return fetched
            empty_answers += 1
            if self._for_corrupt and empty_answers == _EMPTY_ANSWERS:
                return self._fetched(*answer, memoryview(b""), answer[1].high_watermark)
            self._pause(empty_answers, answer[1], attempts.deadline)
        self._drop_flight()
        raise StopIteration

    def _answer(self, deadline: Deadline) -> tuple[_FetchInFlight, PartitionData]:
        flight = self._flight or self._send(deadline)
        self._flight = None
        answer: FetchResponse = flight.connection.receive(flight.ticket, deadline=deadline)
        peer = flight.connection.peer
        if answer.error_code != ErrorCode.NONE:
            why = reason(answer.error_code, "Read", topic=self.tp.topic)
            raise error_for(answer.error_code, f"{peer}: fetch of {self.tp}: {why}")
        for topic in answer.responses:
            for partition in topic.partitions:
                if topic.topic == self.tp.topic and partition.partition_index == self.tp.partition:
                    return flight, partition
        raise InvalidRequest(f"{peer}: the fetch response lacks {self.tp}")

    def _take(self, flight: _FetchInFlight, answer: PartitionData, deadline: Deadline) -> Fetched | None:
        if answer.error_code != ErrorCode.NONE:
            why = reason(answer.error_code, "Read", topic=self.tp.topic)
            text = f"{flight.connection.peer}: {self.tp} at offset {flight.offset}: {why}"
            raise error_for(answer.error_code, text)
        data = memoryview(answer.records) if answer.records is not None else memoryview(b"")
        if not first_entry_is_whole(data) and not (
            self._for_corrupt and self._size >= self._config.fetch_max_bytes
        ):
            if len(data) > 0:
                self._enlarge(len(data))
            return None
        if len(data) == 0:
            return None
        follows = flight.offset == self._ended_at
        expected = ExpectedOffsets.of_answer(flight.offset, -1, follows=follows)
        next_offset = next_offset_after(data, flight.offset, expected)
        high_watermark = answer.high_watermark
        if next_offset > high_watermark >= 0:
            # Apache Kafka takes a response's high watermark before it reads.
            latest = list_offsets(self._cluster, {self.tp: LATEST_TIMESTAMP}, deadline=deadline)
            high_watermark = max(high_watermark, latest[self.tp].offset)
            expected = ExpectedOffsets.of_answer(flight.offset, high_watermark, follows=follows)
            next_offset = next_offset_after(data, flight.offset, expected)
        if next_offset > flight.offset:
            self.position = self._ended_at = next_offset
            self._resize(len(data), next_offset - flight.offset)
        else:
            self._stuck_at = flight.offset
        if not flight.is_shared:
            self._given.append((flight.connection, data.obj))
        return self._fetched(flight, answer, data, high_watermark, follows=follows)

    def _fetched(
        self,
        flight: _FetchInFlight,
        answer: PartitionData,
        data: memoryview,
        high_watermark: int,
        *,
        follows: bool = False,
    ) -> Fetched:
        return Fetched(
            data=data,
            offset=flight.offset,
            next_offset=max(self.position, flight.offset),
            aborted=tuple((t.producer_id, t.first_offset) for t in answer.aborted_transactions or ()),
            high_watermark=high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            broker_id=flight.replica.node_id,
            follows=follows,
        )

    def _send(self, deadline: Deadline) -> _FetchInFlight:
        config = self._config
        replica = self._cluster.read_replica(self.tp, config.client_rack, deadline=deadline)
        connection = self._cluster.connection(replica.node_id, deadline)
        wanted = FetchPartition(
            partition=self.tp.partition,
            current_leader_epoch=replica.leader.epoch,
            fetch_offset=self.position,
            partition_max_bytes=self._size,
        )
        request = FetchRequest(
            replica_id=_CONSUMER,
            # Half the time left, so that a missing response means a silent broker.
            max_wait_ms=min(config.fetch_max_wait_ms, int(deadline.left * 500)),
            min_bytes=config.fetch_min_bytes,
            max_bytes=max(config.fetch_max_bytes, self._size),
            isolation_level=int(config.isolation),
            topics=(FetchTopic(topic=self.tp.topic, partitions=(wanted,)),),
            rack_id=replica.rack,
        )
        ticket = connection.send(request, deadline=deadline)
        return _FetchInFlight(connection, ticket, self.position, replica)

    def _is_sent_elsewhere(self, flight: _FetchInFlight, answer: PartitionData) -> bool:
        """Whether the leader named a replica to read from instead, which the next fetch then asks."""
        named = answer.preferred_read_replica
        if named == NO_LEADER or not flight.replica.rack:
            return False
        self._cluster.read_at(self.tp, named)
        return True

    def _send_ahead(self, deadline: Deadline) -> None:
        if self.position >= self.end:
            return
        try:
            self._flight = self._send(deadline)
        except KafkaError as e:
            # The caller has a response to decode; the next step retries and counts failures.
            logger.info("%s: fetching ahead failed: %s", self.tp, e)
            self._cluster.forget(self.tp.topic)

    def _recover(self, error: KafkaError, attempts: Attempts) -> None:
        """Return when the next attempt is due; raise a final error."""
        self._drop_flight()
        if isinstance(error, CorruptMessage):
            # The broker found its log corrupt. Waiting does not help: try once more over another connection.
            if attempts.failures:
                raise error
            self._cluster.close()
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            error = self._out_of_range(attempts.deadline)
        self._cluster.forget(self.tp.topic)
        attempts.failed(error)

    def _out_of_range(self, deadline: Deadline) -> KafkaError:
        """`OffsetOutOfRange` with the log's range; a retriable error if the position is in it after all."""
        first, last = (
            list_offsets(self._cluster, {self.tp: timestamp}, deadline=deadline)[self.tp].offset
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        if first <= self.position <= last:
            text = f"{self.tp}: offset {self.position} was refused, although it is in [{first}, {last}]"
            return error_for(ErrorCode.OFFSET_NOT_AVAILABLE, text)
        return OffsetOutOfRange(str(self.tp), self.position, first, last)

    def _pause(self, empty_answers: int, answer: PartitionData, deadline: Deadline) -> None:
        wait = self._cluster.retry.backoff(empty_answers)
        if wait + self._config.fetch_max_wait_ms / 1000 >= deadline.left:
            raise RequestTimedOut(
                f"{self.tp}: nothing to read at offset {self.position} within {self._poll_timeout_ms} ms, "
                f"and the read ends at {self.end}; high watermark {answer.high_watermark}, "
                f"last stable offset {answer.last_stable_offset}, {self._config.isolation_level}"
            )
        self._cluster.clock.sleep(wait)

    def _resize(self, received: int, offsets: int) -> None:
        left = (self.end - self.position) * received // offsets
        self._size = min(self._limit, max(FIRST_FETCH_BYTES, min(2 * self._size, left)))

    def _enlarge(self, received: int) -> None:
        """Double the size: an old broker cut even the first batch."""
        limit = self._config.fetch_max_bytes
        if self._size >= limit:
            raise MessageTooLarge(
                f"{self.tp}: the batch at offset {self.position} does not fit {received} bytes; "
                f"fetch.max.bytes is {limit}"
            )
        self._size = min(2 * self._size, limit)
        self._limit = max(self._limit, self._size)

    def _drop_flight(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.connection.drop(flight.ticket)
