"""Incremental fetch sessions (KIP-227): what a client fetches is kept here, so that its next request names
only what has changed, and so does its answer. Source: Kafka 4.1 ``FetchSession.scala``.

A session's fetch looks at each of its partitions, but reads only those of which something may be new.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from kafkalog_broker.log.log import Log
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.security.authentication import Principal
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pyspark_kafkalog.types import TopicPartition

FULL_FETCH, SESSIONLESS = 0, -1
"""Session epochs; each closes the session that the request names."""
_LARGEST = 0x7FFFFFFF

_IDLE_SECONDS = 120.0
"""A session that was not used for so long, or is so old and smaller than a new one, gives way to it."""
_MOST_PARTITIONS = 250_000
"""Of all sessions; each takes about 700 bytes (not in Kafka)."""

Key = tuple[str, UUID, int]
"""Topic, by name or id, and partition."""


class Settled(NamedTuple):
    """How a log was that had nothing to read from where the client is. ``told``: high watermark and start."""

    log: Log
    told: tuple[int, int]
    first_open: int | None
    leader_epoch: int

    @classmethod
    def of(cls, log: Log) -> Settled:
        return cls(log, (log.end_offset, log.start_offset), log.first_open, log.leader_epoch)


class Wanted(msgspec.Struct, eq=False, gc=False):
    """*Guarded by the one request in hand of its session.* What a client fetches of a ``partition``, None if
    no topic has its id. ``told``: high watermark and start in the last answer that named it.
    """

    partition: TopicPartition | None
    topic: FetchTopic
    want: FetchPartition
    settled: Settled | None = None
    told: tuple[int, int] | None = None

    @classmethod
    def of(cls, name: str | None, topic: FetchTopic, want: FetchPartition) -> Wanted:
        """``name`` is that of the topic; None if it has an id that no topic has."""
        return cls(None if name is None else TopicPartition(name, want.partition), topic, want)

    @property
    def key(self) -> Key:
        return self.topic.topic, self.topic.topic_id, self.want.partition

    def is_news(self, data: PartitionData) -> bool:
        """Whether an answer must name the partition; it then has."""
        state = (data.high_watermark, data.log_start_offset)
        is_failed = data.error_code is not ErrorCode.NONE
        if not is_failed and not len(data.records or b"") and self.told == state:
            return False
        self.told = None if is_failed else state
        return True


@dataclass(slots=True, eq=False)
class FetchSession:
    """*Guarded by the lock of its `FetchSessions`, but for the state of what is ``wanted``.*"""

    id: int
    owner: Principal
    has_ids: bool
    wanted: OrderedDict[Key, Wanted]
    """In the order in which they are read; those that had data go last."""
    created: float
    used: float
    epoch: int = 1
    _in_order: list[Wanted] | None = field(default=None, init=False)
    _logs: Mapping[TopicPartition, Log] | None = field(default=None, init=False)
    """Those of the last look; the broker replaces them all when it makes or deletes one."""

    def all(self) -> list[Wanted]:
        """In order; a client's next request does not change it."""
        in_order = self._in_order
        if in_order is None:
            in_order = self._in_order = list(self.wanted.values())
        return in_order

    def changed(self) -> None:
        """Call it after a change of ``wanted``."""
        self._in_order = None

    def stirred(self, logs: Mapping[TopicPartition, Log]) -> list[Wanted]:
        """Partitions of which there may be something new, in the logs that the broker has. In Kafka each is
        read; this loop takes a twentieth of that.
        """
        found, get = [], logs.get
        same_logs, self._logs = logs is self._logs, logs
        for each in self.all():
            settled = each.settled
            if settled is not None:
                log = settled.log
                end, start = settled.told
                if (
                    log.end_offset == end
                    and log.start_offset == start
                    and log.first_open == settled.first_open
                    and log.leader_epoch == settled.leader_epoch
                    and each.told == settled.told
                    and (same_logs or get(log.topic_partition) is log)
                    and log.directory.failure is None
                ):
                    continue
            found.append(each)
        return found


class FetchSessions:
    """*Thread-safe: ``_lock`` guards the table and each session's place in it.*"""

    def __init__(self, slots: int, clock: Clock, metrics: Metrics) -> None:
        self._slots, self._clock, self._metrics = slots, clock, metrics
        self._lock = threading.Lock()
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Those used last are last."""
        self._partitions = 0
        metrics.watch_fetch_sessions(self.__len__, lambda: self._partitions)

    def __len__(self) -> int:
        return len(self._sessions)

    def size_of(self, session_id: int) -> int:
        """Number of partitions, 0 of an unknown one."""
        session = self._sessions.get(session_id)
        return 0 if session is None else len(session.wanted)

    def close(self, session_id: int, owner: Principal) -> None:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.owner == owner:
                self._remove(session)

    def open(self, owner: Principal, wanted: Iterable[Wanted], *, has_ids: bool) -> int:
        """The id of a new session; 0 if there is no room for it."""
        asked = OrderedDict((each.key, each) for each in wanted)
        now = self._clock.monotonic()
        with self._lock:
            while len(self._sessions) >= self._slots or self._partitions + len(asked) > _MOST_PARTITIONS:
                if not self._evict(len(asked), now):
                    return 0
            session_id = random.randint(1, _LARGEST)
            while session_id in self._sessions:
                session_id = random.randint(1, _LARGEST)
            self._sessions[session_id] = FetchSession(session_id, owner, has_ids, asked, now, now)
            self._partitions += len(asked)
        return session_id

    def go_on(
        self,
        request: FetchRequest,
        owner: Principal,
        named: Iterable[tuple[str | None, FetchTopic]],
        *,
        has_ids: bool,
    ) -> FetchSession | None:
        """The session that the request continues, with the partitions that it adds, changes and forgets; None
        if it then has none. ``named``: the request's topics with their names. Raises `ServerError`.
        """
        with self._lock:
            session = self._sessions.get(request.session_id)
            if session is None or session.owner != owner:
                raise ServerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no session {request.session_id}")
            if session.epoch != request.session_epoch:
                raise ServerError(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    f"session {session.id} is at epoch {session.epoch}, not {request.session_epoch}",
                )
            if session.has_ids != has_ids:
                raise ServerError(
                    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, f"session {session.id} has topics by another key"
                )
            before = len(session.wanted)
            for name, topic in named:
                for want in topic.partitions:
                    new = Wanted.of(name, topic, want)
                    if (known := session.wanted.get(new.key)) is not None:
                        new.told = known.told
                    session.wanted[new.key] = new
            for gone in request.forgotten_topics_data:
                for number in gone.partitions:
                    session.wanted.pop((gone.topic, gone.topic_id, number), None)
            if request.topics or request.forgotten_topics_data:
                session.changed()
            self._partitions += len(session.wanted) - before
            if not session.wanted or self._partitions > _MOST_PARTITIONS:
                self._remove(session)
                if session.wanted:
                    raise ServerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions in sessions")
                return None
            session.epoch = session.epoch % _LARGEST + 1
            session.used = self._clock.monotonic()
            self._sessions.move_to_end(session.id)
            return session

    def served(self, session: FetchSession, wanted: Iterable[Wanted]) -> None:
        """These had data: next time they are read last."""
        with self._lock:
            for each in wanted:
                if each.key in session.wanted:
                    session.wanted.move_to_end(each.key)
                    session.changed()

    def _evict(self, size: int, now: float) -> bool:
        """Remove one session for a new one of so many partitions; False if none gives way."""
        longest = next(iter(self._sessions.values()), None)
        if longest is None:
            return False
        if now - longest.used <= _IDLE_SECONDS:
            old = (one for one in self._sessions.values() if now - one.created > _IDLE_SECONDS)
            smallest = min(old, key=lambda one: len(one.wanted), default=None)
            if smallest is None or len(smallest.wanted) >= size:
                return False
            longest = smallest
        self._remove(longest)
        self._metrics.fetch_session_evictions.inc()
        return True

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._partitions -= len(session.wanted)
