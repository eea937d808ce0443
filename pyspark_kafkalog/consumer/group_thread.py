"""The thread that keeps a consumer in its group: joins, sends heartbeats, leaves.

It has its own connections: a broker may hold back a JoinGroup, which must not delay fetches and commits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.client.connection import Connection, ConnectionPool, Ticket
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import Committer, find_coordinator
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Poller
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.client_config import CLASSIC, GroupConsumerConfig
from pyspark_kafkalog.consumer.classic_member import ClassicMember
from pyspark_kafkalog.consumer.member import COORDINATOR_MOVED, EpochMember, Member, Rebalance
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, RequestTimedOut, UnsupportedVersion
from pyspark_kafkalog.protocol.api.groups import JoinGroupRequest, LeaveGroupRequest
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType
from pyspark_kafkalog.protocol.exchange import ApiKey

logger = logging.getLogger(__name__)

TopicLookUp = Callable[[Cluster, Deadline], frozenset[str]]
"""Returns the subscribed topics: the names, or those that match the pattern now."""

_LOOK_UP_SECONDS = 5.0  # limit for one look-up of the coordinator or of topics; the thread retries

_LATE_JOIN_SECONDS = 5.0
"""Grace for the answer to a JoinGroup after the rebalance timeout; as in Java's consumer."""

_MISSING_TOPIC_SECONDS = 1.0  # look-up interval while a subscribed topic does not exist

_IDLE_SECONDS = 5.0

_MEMBERS_VERSION = 3  # first version of LeaveGroup with a list of members


@dataclass(slots=True)
class _InFlight:
    request: Any
    connection: Connection
    ticket: Ticket
    deadline: Deadline


class GroupThread:
    """*Thread-safe: the lock guards `_member` and the times.* Shared by the program's thread and its own."""

    def __init__(
        self, config: GroupConsumerConfig, topics: TopicLookUp, clock: Clock, *, notify: Callable[[], None]
    ) -> None:
        """``notify`` is called from the thread when ``pending`` has a change or a failure."""
        self._config, self._topics, self._clock = config, topics, clock
        self._notify = notify
        classic = config.group_protocol == CLASSIC
        self._member: Member = ClassicMember(config) if classic else EpochMember(config)
        self._lock = threading.Lock()
        self._poller = Poller()
        self._cluster = Cluster(config, clock=clock)
        # Separate from the cluster's: a broker may delay a JoinGroup, and all requests after it, for minutes.
        self._pool = ConnectionPool(config, clock=clock)
        self._coordinator: Connection | None = None
        self._in_flight: _InFlight | None = None
        self._watched: Connection | None = None
        self._not_before = self._look_at = clock.monotonic()
        self._failures = 0
        self._missing: frozenset[str] = frozenset()
        self._polled_at = clock.monotonic()
        self._polling = self._stopping = self._leaving = False
        self._failure: KafkaError | None = None
        self._thread = threading.Thread(target=self._run, name="kafkalog-consumer-group", daemon=True)
        self._thread.start()

    @property
    def identity(self) -> Committer:
        with self._lock:
            return self._member.identity

    def resubscribe(self, topics: TopicLookUp) -> None:
        with self._lock:
            self._topics, self._look_at = topics, self._clock.monotonic()
        self._poller.wake()

    def set_polling(self, polling: bool) -> None:
        """A poll begins or ends, which resets ``max.poll.interval.ms``."""
        with self._lock:
            self._polled_at, self._polling = self._clock.monotonic(), polling

    def pending(self) -> Rebalance | None:
        """The next change; raises the error that ended the membership, then rejoins."""
        with self._lock:
            if self._member.pending:
                return self._member.pending[0]
            failure, self._failure = self._failure, None
            if failure is None and self._member.failure is not None:
                failure = self._member.failure
                self._member.resume(self._clock.monotonic())
        if failure is not None:
            self._poller.wake()
            raise failure
        return None

    def done(self, rebalance: Rebalance) -> None:
        with self._lock:
            self._member.done(rebalance, self._clock.monotonic())
        self._poller.wake()

    def stop(self, deadline: Deadline, *, leave: bool = True) -> None:
        """Waits for the thread until the deadline."""
        with self._lock:
            self._stopping, self._leaving = True, leave
        self._poller.wake()
        self._thread.join(deadline.left)

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._step()
                except KafkaError as e:
                    self._lost_coordinator(e)
                except Exception as e:  # a bug here must not look like an empty topic
                    logger.exception("the consumer's group thread failed")
                    with self._lock:
                        self._failure = InvalidRequest(f"group {self._config.group_id!r}: {e!r}")
                    self._not_before = self._clock.monotonic() + 1
                    self._notify()
            if self._leaving:
                self._leave()
        finally:
            self._close_connections()
            self._poller.close()

    def _step(self) -> None:
        now = self._clock.monotonic()
        goodbye = self._expired(now)
        if goodbye is not None:
            self._say_goodbye(goodbye)
        if now >= max(self._look_at, self._not_before):
            self._look_up()
            now = self._clock.monotonic()
        request = None
        with self._lock:
            topics = self._member.wanted_topics
            if self._in_flight is None and now >= self._not_before and not topics:
                request = self._member.request(now)
                topics = self._member.wanted_topics
        if topics and now >= self._not_before:
            self._learn(topics)
            return
        if request is not None:
            self._send(request)
        self._wait()

    def _wait(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            until = [now + _IDLE_SECONDS, max(self._look_at, self._not_before)]
            if self._in_flight is not None:
                until.append(now + self._in_flight.deadline.left)
            else:
                until.append(max(self._member.due(), self._not_before))
            if self._member.joined and not self._polling:
                until.append(self._polled_at + self._config.max_poll_interval_ms / 1000)
        ready = self._poller.wait(max(min(until) - now, 0.0))
        if any(one.writable for one in ready) and self._in_flight is not None:
            self._in_flight.connection.flush_now()
            self._watch(self._in_flight.connection)
        if any(one.readable for one in ready):
            self._read()
        flight = self._in_flight
        if flight is not None and flight.deadline.passed:
            raise RequestTimedOut(f"{flight.connection.peer}: no answer to {flight.ticket.key.name} in time")

    def _expired(self, now: float) -> Any | None:
        most = self._config.max_poll_interval_ms / 1000
        with self._lock:
            if self._polling or not self._member.joined or now < self._polled_at + most:
                return None
            text = (
                "group %r: no poll() for max.poll.interval.ms=%d: leaving the group until the next one. "
                "Process records faster, or poll fewer: max.poll.records"
            )
            logger.warning(text, self._config.group_id, self._config.max_poll_interval_ms)
            return self._member.expire()

    def _send(self, request: Any) -> None:
        config = self._config
        seconds = config.request_timeout_ms / 1000
        if isinstance(request, JoinGroupRequest):
            seconds = max(seconds, config.max_poll_interval_ms / 1000 + _LATE_JOIN_SECONDS)
        deadline = Deadline.after(seconds, self._clock)
        try:
            connection = self._connected()
            ticket = connection.send_now(request)
        except UnsupportedVersion as e:
            with self._lock:
                self._failure = e
                self._member.failed(self._clock.monotonic())
            self._notify()
            self._not_before = self._clock.monotonic() + _LOOK_UP_SECONDS
            return
        except KafkaError:
            with self._lock:
                self._member.failed(self._clock.monotonic())
            raise
        self._in_flight = _InFlight(request, connection, ticket, deadline)
        self._watch(connection)

    def _read(self) -> None:
        flight, watched = self._in_flight, self._watched
        if watched is not None:
            for ticket, answer in watched.receive_now():
                if flight is not None and ticket is flight.ticket:
                    self._in_flight = None
                    self._answered(flight.request, answer)
            if self._watched is watched and watched.transport.unsent:
                self._watch(watched)  # the login that delayed the request is over

    def _answered(self, request: Any, answer: Any) -> None:
        self._failures = 0
        if answer.error_code in COORDINATOR_MOVED:
            self._forget_coordinator()
        with self._lock:
            self._member.answered(request, answer, self._clock.monotonic())
            news = bool(self._member.pending) or self._member.failure is not None
        if news:
            self._notify()

    def _look_up(self) -> None:
        deadline = Deadline.after(_LOOK_UP_SECONDS, self._clock)
        topics = self._topics(self._cluster, deadline)
        with self._lock:
            watched = self._member.watched_topics
        names = sorted(topics | watched)
        there = self._cluster.metadata(names, refresh=True, deadline=deadline).topics if names else {}
        now = self._clock.monotonic()
        missing = frozenset(name for name in names if not there[name].partitions)
        if missing - self._missing:
            unknown = ", ".join(sorted(missing))
            logger.warning("group %r: no such topic: %s; waiting for it", self._config.group_id, unknown)
        self._missing = missing
        whole = bool(names) and not missing
        age = self._config.metadata_max_age_ms / 1000
        self._look_at = now + (age if whole else min(age, _MISSING_TOPIC_SECONDS))
        with self._lock:
            self._member.subscribe(topics, now)
            if watched:
                self._member.learn(there, now)

    def _learn(self, names: tuple[str, ...]) -> None:
        deadline = Deadline.after(_LOOK_UP_SECONDS, self._clock)
        topics = self._cluster.metadata(list(names), refresh=True, deadline=deadline).topics
        with self._lock:
            self._member.learn(topics, self._clock.monotonic())
            news = bool(self._member.pending)
        if news:
            self._notify()

    def _connected(self) -> Connection:
        if self._coordinator is None or self._coordinator.broken:
            group = self._config.group_id or ""
            deadline = Deadline.after(_LOOK_UP_SECONDS, self._clock)
            node_id = find_coordinator(self._cluster, CoordinatorType.GROUP, group, deadline)
            self._coordinator = self._cluster.connection(node_id, deadline, self._pool)
        return self._coordinator

    def _watch(self, connection: Connection) -> None:
        if self._watched is not connection:
            self._unwatch()
            self._watched = connection
        self._poller.watch(connection.transport, connection, writing=connection.transport.unsent)

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            self._poller.forget(watched.transport)

    def _close_connections(self) -> None:
        self._forget_coordinator()
        self._pool.close()
        self._cluster.close()

    def _forget_coordinator(self) -> None:
        self._unwatch()
        self._coordinator = None

    def _lost_coordinator(self, error: KafkaError) -> None:
        logger.info("group %r: %s", self._config.group_id, error)
        flight, self._in_flight = self._in_flight, None
        self._failures += 1
        wait = self._cluster.retry.backoff(self._failures)
        # Other requests on these connections are useless too; they are sent again.
        self._close_connections()
        now = self._clock.monotonic()
        self._not_before = now + wait
        with self._lock:
            if flight is not None:
                self._member.failed(now)
            if not error.retriable:
                self._failure = error
        if not error.retriable:
            self._notify()

    def _leave(self) -> None:
        with self._lock:
            goodbye = self._member.leave()
        if goodbye is None:
            return
        try:
            # A pending JoinGroup would delay the request.
            if self._in_flight is not None:
                self._close_connections()
            self._say_goodbye(goodbye)
        except KafkaError as e:
            logger.info("group %r: leaving it failed: %s", self._config.group_id, e)

    def _say_goodbye(self, goodbye: Any) -> None:
        if self._in_flight is not None:
            self._in_flight.connection.drop(self._in_flight.ticket)
            self._in_flight = None
        connection = self._connected()
        if isinstance(goodbye, LeaveGroupRequest):
            many = connection.version(ApiKey.LEAVE_GROUP) >= _MEMBERS_VERSION
            goodbye = LeaveGroupRequest(
                goodbye.group_id, "" if many else goodbye.member_id, goodbye.members if many else ()
            )
        deadline = Deadline.after(_LOOK_UP_SECONDS, self._clock)
        answer = connection.request(goodbye, deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            logger.info("group %r: leaving it: %s", self._config.group_id, answer.error_code.name)
