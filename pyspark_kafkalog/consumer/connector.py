"""The consumer of a group: `ConsumerConnector` shares topics with its group by way of ZooKeeper."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Mapping

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.connector import ConnectorConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.assignment import thread_id
from pyspark_kafkalog.consumer.holdings import Holdings
from pyspark_kafkalog.consumer.offset_store import open_offsets
from pyspark_kafkalog.consumer.stream import MessageStream
from pyspark_kafkalog.consumer.topic_filter import TopicFilter
from pyspark_kafkalog.consumer.zookeeper_group import GroupMember, GroupWatch, Lease
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.zookeeper.brokers import brokers
from pyspark_kafkalog.zookeeper.connecting import session_of
from pyspark_kafkalog.zookeeper.groups import ConsumerIdInUse
from pyspark_kafkalog.zookeeper.paths import layout_of
from pyspark_kafkalog.zookeeper.session import SessionEvent, Watch
from pyspark_kafkalog.zookeeper.values import PartitionKey, Subscription

_log = logging.getLogger(__name__)

_LEASE_SHARE = 0.8
"""How much of the session's timeout an answer of ZooKeeper is good for: clocks may run at slightly different
speeds, and a message must reach its reader in the rest."""

_LEASE_ROUNDS = 5
"""How often ZooKeeper is asked within the session's timeout."""

_STOP_SECONDS = 10.0


class ConsumerConnector:
    """*Thread-safe.* A consumer of a group that shares the partitions of topics among its members.

        with ConsumerConnector({"groupid": "loaders", "zookeeper.connect": "localhost:2181"}) as connector:
            (stream,) = connector.create_message_streams({"clicks": 1})["clicks"]
            for message, metadata in stream:
                ...

    Each stream is for one thread. Messages come at least once: one that was given out counts as dealt with
    when its reader asks for the next, and only such are committed. Owns a session with ZooKeeper, a thread
    for rebalancing, one for the session's lease, one for commits, and one per broker. Needs no care when
    consumers, brokers, topics or the session come and go.
    """

    def __init__(
        self,
        config: Mapping[str, object] | ConnectorConfig,
        *,
        before_commit: Callable[[], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect to ZooKeeper; the group hears of us when streams are created.

        ``before_commit`` is for readers that hand messages on, and are finished with them later: it is called
        on any thread before each commit, those of a hand-over too, when what was dealt with until then is
        noted and nothing is stored yet. It may wait, and raises a `KafkaError` to prevent the commit.

        Raises:
            InvalidConfig: a property that is not allowed.
            ConnectionLost: no ZooKeeper answers.
        """
        if not isinstance(config, ConnectorConfig):
            config = parse(ConnectorConfig, config, source="consumer")
        self.config = config
        self.consumer_id = _consumer_id(config, clock)
        self._clock = clock
        self._layout = layout_of(config, config.protocol)
        self._session = session_of(config)
        self._offsets = open_offsets(config, self._session, self._layout, clock=clock)
        self._lease = Lease(config.zookeeper_session_timeout_ms / 1000 * _LEASE_SHARE, clock)
        self._streams: dict[tuple[str, int], MessageStream] = {}
        self._filtered: list[MessageStream] = []
        self._holdings = Holdings(
            config, self._offsets, self._lease, self._stream_of, before_commit=before_commit, clock=clock
        )
        self._lock = threading.Lock()  # held by who creates streams, or ends it all
        self._member: GroupMember | None = None
        self._watch: GroupWatch | None = None
        self._contested: list[Watch] = []
        self._expiries = self._joined = 0
        """Ends of sessions, and the one after which the group knows us: where they differ, join again."""
        self._closed = threading.Event()
        self._changed, self._asked = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._session.listen(self._session_changed)
        self._session.start()

    def create_message_streams(self, streams: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """So many streams for each topic; the partitions of a topic are shared by its streams in the group.

        A topic need not exist yet. For a connector streams are created once: name all topics at once.

        Raises:
            InvalidConfig: a topic with less than one stream.
            InvalidRequest: streams were created already.
            ConsumerIdInUse: the group has a consumer with our ``consumerid``, or has not missed it yet: then
                it may be tried again once its session has ended.
            ConnectionLost: ZooKeeper does not answer.
        """
        subscription = Subscription(streams)
        found = {topic: [self._stream(number) for number in range(count)] for topic, count in streams.items()}
        by_thread = {(topic, one.number): one for topic, several in found.items() for one in several}
        self._join(subscription, by_thread, [])
        return found

    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[MessageStream]:
        """So many streams of all topics that the filter allows, those included that appear later.

        Raises as `create_message_streams`.
        """
        subscription = topic_filter.subscription(streams)
        found = [self._stream(number) for number in range(streams)]
        self._join(subscription, {}, found)
        return found

    def commit_offsets(self) -> None:
        """Commit what streams have dealt with, and the message that the calling thread was given last.

        Raises:
            ConnectionLost: it cannot be stored now, or it is not known whether the partitions are still ours.
            KafkaError: the store refused.
        """
        partitions = self._holdings.partitions()
        for partition in partitions:
            partition.stream.finished()
        self._holdings.commit(partitions)

    @property
    def owned(self) -> dict[PartitionKey, str]:
        """The partitions that are read now, with the threads that the group knows them by."""
        return {
            one.key: thread_id(self.consumer_id, one.stream.number) for one in self._holdings.partitions()
        }

    def lag(self) -> dict[PartitionKey, int]:
        """How far what was dealt with is behind the ends of the logs: bytes in 0.7, else offsets.

        One request for each partition that is read now.

        Raises:
            KafkaError: a broker does not answer, or not well.
        """
        return self._holdings.lag()

    def shutdown(self) -> None:
        """Leave the group; streams end. What was dealt with is committed where ``autocommit.enable`` is set.

        A message that a reader still has is not among it after half a second; nor is one that the calling
        thread has, unless it calls `commit_offsets` before. A second call does nothing.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for stream in self._all_streams():
            stream.close()
        if self._watch is not None:
            self._watch.cancel()
        self._changed.set()
        self._asked.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_STOP_SECONDS)
        try:
            if self._member is not None:
                self._member.leave()
        except KafkaError as e:
            _log.warning("%s stays in its group until its session ends: %s", self.consumer_id, e)
        finally:
            self._holdings.close()
            self._offsets.close()
            self._session.close()

    def __enter__(self) -> ConsumerConnector:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _join(
        self,
        subscription: Subscription,
        streams: dict[tuple[str, int], MessageStream],
        filtered: list[MessageStream],
    ) -> None:
        with self._lock:
            if self._member is not None or self._closed.is_set():
                raise InvalidRequest("a connector creates streams once, for all its topics; use another one")
            self._streams, self._filtered = streams, filtered
            self._member = member = GroupMember(
                self._session, self._layout, self.config.group_id, self.consumer_id, subscription,
                self._holdings, clock=self._clock,
            )  # fmt: skip
            self._joined = self._expiries
            try:
                member.register()
            except ConsumerIdInUse:
                # Whoever had our id may only not have been missed yet: we may be asked again.
                self._streams, self._filtered, self._member = {}, [], None
                raise
        watch = GroupWatch(self._session, self._layout, self.config.group_id, subscription, self._changed.set)
        self._watch = watch
        watch.start()
        self._changed.set()
        for run in (self._keep_lease, self._keep_balance, self._keep_offsets):
            thread = threading.Thread(target=run, args=(member,), name=run.__name__.strip("_"), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _session_changed(self, event: SessionEvent) -> None:
        """On the session's thread."""
        if event in (SessionEvent.SUSPENDED, SessionEvent.LOST):
            self._lease.end()
        if event in (SessionEvent.LOST, SessionEvent.RENEWED):
            self._expiries += 1
            self._changed.set()
        self._asked.set()

    def _keep_lease(self, member: GroupMember) -> None:
        wait_seconds = self.config.zookeeper_session_timeout_ms / 1000 / _LEASE_ROUNDS
        while not self._closed.is_set():
            self._asked.clear()
            joined, asked = self._joined, self._lease.asking()
            try:
                if member.registered():
                    self._lease.confirm(asked)
                    for stream in self._all_streams():
                        stream.wake()
                elif joined == self._joined == self._expiries:
                    _log.warning("%s is missing from its group, and joins again", self.consumer_id)
                    self._lease.end()
                    self._expiries += 1
                    self._changed.set()
            except KafkaError as e:
                _log.warning("nothing is given out until ZooKeeper answers: %s", e)
            except Exception:
                _log.exception("asking for %s failed", self.consumer_id)
            self._asked.wait(wait_seconds)

    def _keep_balance(self, member: GroupMember) -> None:
        failures = 0
        while True:
            complete = False
            self._changed.clear()
            if self._closed.is_set():
                return
            try:
                complete = self._rebalance(member)
                failures = 0 if complete else failures + 1
                if failures == self.config.rebalance_retries_max:
                    _log.error("others do not let go of %s; trying on", ", ".join(member.contested))
            except KafkaError as e:
                _log.warning("rebalancing %s fails and is tried again: %s", self.consumer_id, e)
            except Exception:
                _log.exception("rebalancing %s failed", self.consumer_id)
            self._changed.wait(None if complete else self.config.rebalance_backoff_ms / 1000)

    def _rebalance(self, member: GroupMember) -> bool:
        number = self._expiries
        if number != self._joined:
            member.register()
            self._joined = number
            self._asked.set()
        try:
            complete = member.rebalance()
        finally:
            self._holdings.attach(brokers(self._session, self._layout))
        for watch in self._contested:
            watch.cancel()
        self._contested = [self._session.watch_node(path, self._let_go) for path in member.contested]
        return complete

    def _let_go(self, owner: bytes | None) -> None:
        if owner is None:
            self._changed.set()

    def _keep_offsets(self, member: GroupMember) -> None:  # noqa: ARG002
        if not self.config.auto_commit:
            return
        while not self._closed.wait(self.config.auto_commit_interval_ms / 1000):
            try:
                self._holdings.commit(self._holdings.partitions())
            except KafkaError as e:
                _log.warning("committing fails and is tried again: %s", e)
            except Exception:
                _log.exception("committing failed")

    def _stream(self, number: int) -> MessageStream:
        stream = MessageStream(
            number,
            timeout_ms=self.config.consumer_timeout_ms,
            max_chunks=self.config.queued_chunks_max,
            may_give=self._lease.held,
            clock=self._clock,
        )
        stream.wanted = self._holdings.wake_fetchers
        return stream

    def _all_streams(self) -> list[MessageStream]:
        return [*self._streams.values(), *self._filtered]

    def _stream_of(self, topic: str, number: int) -> MessageStream:
        return self._filtered[number] if self._filtered else self._streams[topic, number]


def _consumer_id(config: ConnectorConfig, clock: Clock) -> str:
    if config.consumer_id is not None:
        return f"{config.group_id}_{config.consumer_id}"
    return f"{config.group_id}_{socket.gethostname()}-{clock.time_ms()}-{uuid.uuid4().hex[:8]}"
