"""Fetches from many partitions without a thread: one request per leader; records are decoded when taken.

The next answer is fetched meanwhile, so at most two answers per partition are in memory.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_kafkalog.client.connection import Connection, ConnectionPool, Ticket
from pyspark_kafkalog.client.discovery import NO_LEADER, Cluster, ReadReplica
from pyspark_kafkalog.client.fetch_session import FetchSession
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Poller
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.columnar.batch_walk import BatchWalk, block_records
from pyspark_kafkalog.columnar.column_types import Answer
from pyspark_kafkalog.config.client_config import GroupConsumerConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    KafkaError,
    MessageTooLarge,
    RequestTimedOut,
    error_for,
    reason,
)
from pyspark_kafkalog.formats.message_set import (
    MAX_BATCH_BYTES,
    AbortedTransactions,
    ExpectedOffsets,
    first_entry_is_whole,
    next_offset_after,
)
from pyspark_kafkalog.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pyspark_kafkalog.types import Header, IsolationLevel, Record, TimestampType, TopicPartition

logger = logging.getLogger(__name__)

_CONSUMER = -1
_NO_END = (1 << 63) - 1
_ONE_BATCH = 1  # fetch size that returns one batch, because a broker does not cut the first

_ANSWERS = 2  # answers per partition: one being taken, one in flight or waiting

_CONNECT_SECONDS, _FIRST_LOOK_UP_SECONDS, _LOOK_UP_SECONDS = 2.0, 0.25, 2.0
"""Limits for connecting, and for a leader look-up at first and after failures; they keep poll() short."""

_LOST_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


class ConsumerRecord(NamedTuple):
    """A record as `Consumer` returns it.

    ``timestamp`` is in milliseconds since the epoch, -1 if missing. A value of None is a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class _Fetched:
    """*Not thread-safe.* One answer for a partition; records are decoded when taken."""

    def __init__(self, tp: TopicPartition, walk: BatchWalk, next_offset: int) -> None:
        self.next_offset = next_offset
        self._tp, self._walk = tp, walk
        self._blocks = walk.verified_blocks()
        self._records: list[Record] = []
        self._taken = 0

    @property
    def reached(self) -> int:
        return self._walk.next_offset

    def take(self, most: int) -> tuple[list[ConsumerRecord], int]:
        """Up to ``most`` records and the offset after them; an empty list at the end. Raises on bad data."""
        while self._taken == len(self._records):
            self._records, self._taken = [], 0
            block = next(self._blocks, None)
            if block is None:
                return [], self._walk.next_offset
            self._records = block_records(block)
        topic, partition, _ = self._tp
        part = self._records[self._taken : self._taken + most]
        self._taken += len(part)
        return [
            ConsumerRecord(
                topic, partition, r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers
            )
            for r in part
        ], part[-1].offset + 1


@dataclass(slots=True, eq=False)
class Reading:
    """*Not thread-safe.* State of an assigned partition. ``position``: the next offset for the program."""

    tp: TopicPartition
    usual_size: int
    size: int  # size in bytes of the next fetch
    position: int | None = None
    reset: int | None = None  # ListOffsets timestamp with which to find the position
    paused: bool = False
    fetched: deque[_Fetched] = field(default_factory=deque)
    fetch_from: int = -1  # start of the next fetch, after ``fetched``
    follows: bool = False
    not_before: float = 0.0
    in_flight: bool = False
    at_leader: bool = True  # whether its last fetch asks the leader
    one_by_one: bool = False  # whether to fetch single batches, up to a corrupt one
    fault: KafkaError | None = None  # why the data at the position cannot be read

    def seek(self, offset: int) -> None:
        self._drop()
        self.position = self.fetch_from = offset

    def seek_time(self, timestamp: int) -> None:
        """From the next poll on."""
        self._drop()
        self.position, self.reset = None, timestamp

    def take(self, most: int) -> list[ConsumerRecord]:
        if self.fault is not None:
            raise self.fault
        found: list[ConsumerRecord] = []
        while self.fetched and len(found) < most:
            answer = self.fetched[0]
            try:
                records, self.position = answer.take(most - len(found))
            except KafkaError as e:
                if not self.one_by_one and self.position is not None and answer.reached > self.position:
                    # Sound batches before the bad one were held back; fetched one by one, each is returned.
                    self.seek(self.position)
                    self.size, self.one_by_one = _ONE_BATCH, True
                    break
                self.fault = e
                if not found:
                    raise
                break
            found += records
            if not records:
                self.fetched.popleft()
                if self.position != answer.next_offset:
                    self.seek(self.position)
        return found

    def _drop(self) -> None:
        self.size, self.one_by_one = self.usual_size, False
        self.reset, self.follows, self.fault = None, False, None
        self.fetched.clear()


@dataclass(slots=True, eq=False)
class _Flight:
    node_id: int
    connection: Connection
    ticket: Ticket
    deadline: Deadline
    asked: dict[TopicPartition, tuple[Reading, int]]  # readings, and the offsets asked for


class RecordFetcher:
    """*Not thread-safe: the program's thread*, except `wake`. ``readings`` are the assigned partitions."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConsumerConfig,
        clock: Clock,
        out_of_range: Callable[[Reading, KafkaError], None],
    ) -> None:
        """``out_of_range`` is called if a position is not in the log."""
        self.readings: dict[TopicPartition, Reading] = {}
        self._cluster, self._config, self._clock = cluster, config, clock
        self._out_of_range = out_of_range
        self._pool = ConnectionPool(config, clock=clock)
        self._poller = Poller()
        self._flights: dict[int, _Flight] = {}
        self._sessions: defaultdict[int, FetchSession] = defaultdict(FetchSession)
        self._turns: deque[Reading] = deque()
        self._failures = 0
        self.wake = self._poller.wake

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        size = min(self._config.max_partition_fetch_bytes, self._config.fetch_max_bytes)
        self.readings = {
            tp: self.readings.get(tp) or Reading(tp, size, size) for tp in sorted(set(partitions))
        }
        self._turns = deque(self.readings.values())

    def take(self, most: int) -> list[ConsumerRecord]:
        """Up to ``most`` records, from the partitions in turn. Raises on bad data, until `Reading.seek`."""
        found: list[ConsumerRecord] = []
        for _ in range(len(self._turns)):
            reading = self._turns[0]
            if not reading.paused and (reading.fault is None or not found):
                found += reading.take(most - len(found))
            if len(found) >= most:
                break
            self._turns.rotate(-1)
        return found

    def wait(self, seconds: float) -> None:
        """Sends fetches, then waits for answers until `wake`. Raises for bad data and for final errors."""
        now = self._clock.monotonic()
        self._send(now)
        later = [r.not_before for r in self.readings.values() if r.not_before > now and not r.in_flight]
        until = min([now + seconds, *later, *(now + f.deadline.left for f in self._flights.values())])
        for ready in self._poller.wait(max(until - now, 0.0)):
            flight: _Flight = ready.data
            try:
                if ready.writable:
                    flight.connection.flush_now()
                    self._watch(flight)
                answers = flight.connection.receive_now() if ready.readable else []
                if flight.connection.transport.unsent:
                    self._watch(flight)  # the login that delayed the request is over
            except KafkaError as e:
                self._lost(flight, e)
                continue
            for ticket, answer in answers:
                if ticket is flight.ticket:
                    self._flights.pop(flight.node_id, None)
                    self._poller.forget(flight.connection.transport)
                    self._answered(flight, answer)
        for flight in [f for f in self._flights.values() if f.deadline.passed]:
            self._lost(flight, RequestTimedOut(f"{flight.connection.peer}: no answer to a fetch in time"))

    def send_ahead(self) -> None:
        self._send(self._clock.monotonic())

    def close(self) -> None:
        self._pool.close()
        self._poller.close()

    def _send(self, now: float) -> None:
        due = [
            r
            for r in self.readings.values()
            if r.position is not None
            and not (r.paused or r.in_flight or r.fault)
            and len(r.fetched) < _ANSWERS
            and r.not_before <= now
        ]
        if not due:
            return
        deadline = Deadline.after(self._config.request_timeout_ms / 1000, self._clock)
        nodes: dict[int, dict[TopicPartition, tuple[Reading, ReadReplica]]] = defaultdict(dict)
        limits: dict[str, Deadline] = {}
        for reading in due:
            tp = reading.tp
            try:
                if (limit := limits.get(tp.topic)) is None:
                    limit = limits[tp.topic] = self._limit()
                replica = self._cluster.read_replica(tp, self._config.client_rack, deadline=limit)
            except ConnectionLost as e:
                # No broker answers: looking up the others would only take as long again.
                self._postpone(due, e)
                break
            except KafkaError as e:
                self._postpone([reading], e)
                continue
            nodes[replica.node_id][tp] = reading, replica
        for node_id, asked in nodes.items():
            if node_id in self._flights:
                continue  # sent once that answer has arrived
            try:
                soon = deadline.within(_CONNECT_SECONDS)
                connection = self._cluster.connection(node_id, soon, self._pool)
                ticket = connection.send_now(self._request(asked, self._sessions[node_id]))
            except KafkaError as e:
                self._postpone([reading for reading, _ in asked.values()], e)
                continue
            offsets = {tp: (reading, reading.fetch_from) for tp, (reading, _) in asked.items()}
            flight = _Flight(node_id, connection, ticket, deadline, offsets)
            for reading, replica in asked.values():
                reading.in_flight = True
                reading.at_leader = node_id == replica.leader.node_id
            self._flights[node_id] = flight
            self._watch(flight)

    def _limit(self) -> Deadline:
        """Of a look-up: short at first, longer for a slow broker."""
        seconds = min(_LOOK_UP_SECONDS, _FIRST_LOOK_UP_SECONDS * 2 ** min(self._failures, 10))
        return Deadline.after(seconds, self._clock)

    def _request(
        self, asked: dict[TopicPartition, tuple[Reading, ReadReplica]], session: FetchSession
    ) -> FetchRequest:
        wanted: dict[TopicPartition, FetchPartition] = {}
        for tp, (reading, replica) in asked.items():
            epoch, offset, size = replica.leader.epoch, reading.fetch_from, reading.size
            kept = session.kept(tp)
            if kept is None or (kept.current_leader_epoch, kept.fetch_offset, kept.partition_max_bytes) != (
                epoch,
                offset,
                size,
            ):
                kept = FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    partition_max_bytes=size,
                )
            wanted[tp] = kept
        config = self._config
        return FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=max(config.fetch_max_bytes, *(reading.size for reading, _ in asked.values())),
            isolation_level=int(config.isolation),
            # Of none, if the leader must answer for one of them.
            rack_id=min(replica.rack for _, replica in asked.values()),
            **session.next(wanted),
        )

    def _watch(self, flight: _Flight) -> None:
        transport = flight.connection.transport
        self._poller.watch(transport, flight, writing=transport.unsent)

    def _answered(self, flight: _Flight, answer: FetchResponse) -> None:
        for reading, _ in flight.asked.values():
            reading.in_flight = False
        peer = flight.connection.peer
        if not self._sessions[flight.node_id].answered(answer):
            return
        if answer.error_code != ErrorCode.NONE:
            error = error_for(answer.error_code, f"{peer}: fetch: {answer.error_code.name}")
            self._postpone([reading for reading, _ in flight.asked.values()], error)
            return
        self._failures = 0
        for topic in answer.responses:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, part.partition_index)
                if tp not in flight.asked:
                    continue
                reading, offset = flight.asked[tp]
                # Skip the answer if the program has sought or lost the partition meanwhile.
                is_same = self.readings.get(tp) is reading and reading.fetch_from == offset
                if is_same and reading.position is not None:
                    self._take_in(reading, part, peer)

    def _take_in(self, reading: Reading, part: PartitionData, peer: str) -> None:
        offset = reading.fetch_from
        if part.preferred_read_replica != NO_LEADER:
            self._cluster.read_at(reading.tp, part.preferred_read_replica)
            return
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and reading.at_leader:
            text = f"{peer}: {reading.tp} has no offset {offset}"
            self._out_of_range(reading, error_for(part.error_code, text))
            return
        if part.error_code != ErrorCode.NONE:
            why = reason(part.error_code, "Read", topic=reading.tp.topic)
            text = f"{peer}: {reading.tp} at offset {offset}: {why}"
            out_of_range = part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE  # of a replica: its leader knows
            code = ErrorCode.OFFSET_NOT_AVAILABLE if out_of_range else part.error_code
            self._postpone([reading], error_for(code, text))
            return
        data = memoryview(part.records or b"")
        if not first_entry_is_whole(data):
            if len(data) > 0:
                self._enlarge(reading, len(data))
            return
        aborted = None
        if self._config.isolation is IsolationLevel.READ_COMMITTED:
            listed = part.aborted_transactions or ()
            aborted = AbortedTransactions(tuple((t.producer_id, t.first_offset) for t in listed))
        expected = ExpectedOffsets.of_answer(offset, -1, follows=reading.follows)
        view = data.cast("B")
        walk = BatchWalk(
            Answer(view, reading.tp, offset, _NO_END, MAX_BATCH_BYTES, aborted=aborted, expected=expected)
        )
        reading.fetch_from, reading.follows = next_offset_after(data, offset, expected), True
        reading.fetched.append(_Fetched(reading.tp, walk, reading.fetch_from))

    def _enlarge(self, reading: Reading, received: int) -> None:
        """An old broker cut even the first batch: doubles the fetch size."""
        limit = self._config.fetch_max_bytes
        if reading.size >= limit:
            raise MessageTooLarge(
                f"{reading.tp}: the batch at offset {reading.fetch_from} does not fit {received} bytes; "
                f"fetch.max.bytes is {limit}"
            )
        reading.size = min(2 * reading.size, limit)

    def _postpone(self, readings: list[Reading], error: KafkaError) -> None:
        if not (error.retriable or error.code in _LOST_LEADER):
            raise error
        logger.info("%s: %s; trying again", ", ".join(str(reading.tp) for reading in readings), error)
        self._failures += 1
        not_before = self._clock.monotonic() + self._cluster.retry.backoff(self._failures)
        for reading in readings:
            self._cluster.forget(reading.tp.topic)
            reading.not_before = not_before

    def _lost(self, flight: _Flight, error: KafkaError) -> None:
        self._flights.pop(flight.node_id, None)
        self._poller.forget(flight.connection.transport)
        flight.connection.close()
        self._sessions[flight.node_id].lost()
        for reading, _ in flight.asked.values():
            reading.in_flight = False
        self._postpone([reading for reading, _ in flight.asked.values()], error)
