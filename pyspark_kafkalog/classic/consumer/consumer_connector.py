"""`ConsumerConnector`: a consumer of a group coordinated in ZooKeeper, and its partitions."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from pyspark_kafkalog.classic.consumer.broker_fetcher import BrokerFetcher
from pyspark_kafkalog.classic.consumer.offset_store import OffsetStore, open_offsets
from pyspark_kafkalog.classic.consumer.stream import MessageStream, OwnedPartition, TopicFilter
from pyspark_kafkalog.classic.consumer.zookeeper_group import (
    Claim,
    GroupMember,
    GroupWatch,
    SessionLease,
    thread_id,
)
from pyspark_kafkalog.client.connection import Address
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import RANGE_BY_BROKER, ConnectorConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import ConnectionLost, InvalidRequest, KafkaError
from pyspark_kafkalog.zookeeper.paths import BrokerNode, ConsumerSubscription, PartitionKey, layout_of
from pyspark_kafkalog.zookeeper.registries import ConsumerIdInUse, brokers
from pyspark_kafkalog.zookeeper.session import SessionEvent, Watch, session_of

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.5  # time for a reader to finish its message before the partition is released
_LEASE_SHARE = 0.8  # of the session timeout; the rest is for clock drift and for delivering a message
_LEASE_ROUNDS = 5  # ZooKeeper requests per session timeout
_STOP_SECONDS = 10.0


class OwnedPartitions:
    """*Thread-safe.* The `RebalanceListener` of a `GroupMember`. `_lock` guards partitions and fetchers.
    `_committing` is held during a commit, so that none ends after the partition got another owner.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        offsets: OffsetStore,
        lease: SessionLease,
        stream_of: Callable[[str, int], MessageStream],
        *,
        before_commit: Callable[[], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._offsets, self._lease, self._clock = config, offsets, lease, clock
        self._stream_of, self._before_commit = stream_of, before_commit
        self._lock, self._committing = threading.Lock(), threading.Lock()
        self._partitions: dict[PartitionKey, tuple[OwnedPartition, BrokerFetcher | None]] = {}
        self._fetchers: dict[Address, BrokerFetcher] = {}

    def partitions(self) -> list[OwnedPartition]:
        with self._lock:
            return [partition for _, (partition, _) in sorted(self._partitions.items())]

    def lag(self) -> dict[PartitionKey, int]:
        with self._lock:
            held = list(self._partitions.values())
        return {
            partition.key: max(0, fetcher.end_offset(partition) - done)
            for partition, fetcher in held
            if fetcher is not None and (done := partition.done) is not None
        }

    def wake_fetchers(self) -> None:
        for fetcher in list(self._fetchers.values()):
            fetcher.wake()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def release(self, partitions: Collection[PartitionKey]) -> None:
        given_up = self._give_up(partitions, _PATIENCE_SECONDS)
        if not self._config.auto_commit:
            with self._committing:  # a running commit must not end after the next owner's first
                return
        try:
            self.commit(given_up)
        except KafkaError as e:
            _log.warning("released without a commit, messages will be repeated: %s", e)

    def abandon(self, partitions: Collection[PartitionKey]) -> None:
        self._give_up(partitions, 0.0)

    def take(self, claimed: Mapping[PartitionKey, Claim]) -> None:
        offsets = self._load(claimed)
        for key, claim in claimed.items():
            stream = self._stream_of(key.topic, claim.stream)
            offset = offsets.get(key)
            partition = OwnedPartition(key, claim.broker, stream, offset if isinstance(offset, int) else None)
            if isinstance(offset, KafkaError):
                partition.failed = True
                stream.put(partition, offset)
            with self._lock:
                self._partitions[key] = (partition, None)

    def _load(self, claimed: Iterable[PartitionKey]) -> dict[PartitionKey, int | KafkaError]:
        """A retriable error is raised, another returned for its partition."""
        offsets: dict[PartitionKey, int | KafkaError] = {}
        try:
            offsets.update(self._offsets.load(list(claimed)))
        except KafkaError as e:
            if e.retriable:
                raise
            for key in claimed:
                try:
                    offsets.update(self._offsets.load([key]))
                except KafkaError as one:
                    offsets[key] = one
        return offsets

    def _give_up(self, keys: Collection[PartitionKey], patience_seconds: float) -> list[OwnedPartition]:
        with self._lock:
            found = [self._partitions.pop(key) for key in keys if key in self._partitions]
        until = self._clock.monotonic() + patience_seconds
        for partition, fetcher in found:
            if fetcher is not None:
                fetcher.remove(partition)
            partition.stream.revoke(partition)
        for partition, _ in found:
            partition.stream.revoke(partition, max(0.0, until - self._clock.monotonic()))
        return [partition for partition, _ in found]

    def attach(self, nodes: Mapping[int, BrokerNode]) -> None:
        """Fetches each partition from its current broker; stops idle fetchers."""
        with self._lock:
            for key, (partition, fetcher) in self._partitions.items():
                node = nodes.get(partition.broker)
                if node is None:
                    continue
                address = node.host, node.port
                if fetcher is not None:
                    if fetcher.address == address:
                        continue
                    fetcher.remove(partition)
                if address not in self._fetchers:
                    made = BrokerFetcher(address, self._config, self._store_begin, clock=self._clock)
                    self._fetchers[address] = made.start()
                self._partitions[key] = (partition, self._fetchers[address])
                self._fetchers[address].add(partition)
            idle = [address for address, fetcher in self._fetchers.items() if fetcher.idle]
            ended = [self._fetchers.pop(address) for address in idle]
        for fetcher in ended:
            fetcher.stop(wait_seconds=0.0)  # it may be waiting for a dead broker

    def _store_begin(self, partition: OwnedPartition, offset: int) -> None:
        if not self._lease.held():
            raise ConnectionLost(f"{partition.key}: it is unknown whether we still own it")
        self._offsets.save({partition.key: offset})
        partition.committed = offset

    def commit(self, partitions: Collection[OwnedPartition]) -> None:
        with self._committing:
            done = [(one, one.done) for one in partitions]
            offsets = {
                one.key: offset for one, offset in done if offset is not None and offset != one.committed
            }
            if not offsets:
                return
            ends = self._lease.ends
            if self._before_commit is not None:
                self._before_commit()
            # In the meantime the partitions may have got other owners, and we may have rejoined.
            if not self._lease.held() or self._lease.ends != ends:
                raise ConnectionLost(
                    f"group {self._config.group_id}: ZooKeeper does not answer, so partitions may have "
                    "other owners: nothing is committed"
                )
            self._offsets.save(offsets)
            for one, offset in done:
                if one.key in offsets:
                    one.committed = offset


class ConsumerConnector:
    """*Thread-safe.* A consumer of a group whose members share the partitions of topics.

        with ConsumerConnector({"groupid": "loaders", "zookeeper.connect": "localhost:2181"}) as connector:
            (stream,) = connector.create_message_streams({"clicks": 1})["clicks"]
            for message, metadata in stream:
                ...

    Each stream is for one thread. Delivery is at least once: a message counts as processed when its reader
    asks for the next, and only processed messages are committed. Owns a ZooKeeper session, a thread each for
    rebalances, the session's lease and commits, and one per broker.
    """

    def __init__(
        self,
        config: Mapping[str, object] | ConnectorConfig,
        *,
        before_commit: Callable[[], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connects to ZooKeeper; the consumer joins the group when streams are created.

        ``before_commit`` is for readers that process messages asynchronously. It runs on any thread before
        each commit, including on release of a partition: after the processed offsets are noted and before
        they are stored. It may wait, or raise a `KafkaError` to prevent the commit.

        Raises `InvalidConfig`, or `ConnectionLost`: ZooKeeper does not answer.
        """
        if not isinstance(config, ConnectorConfig):
            config = parse(ConnectorConfig, config, source="consumer")
        self.config = config
        self.consumer_id = _consumer_id(config, clock)
        self._clock = clock
        self._layout = layout_of(config, config.protocol)
        self._session = session_of(config)
        self._offsets = open_offsets(config, self._session, self._layout, clock=clock)
        self._lease = SessionLease(config.zookeeper_session_timeout_ms / 1000 * _LEASE_SHARE, clock)
        self._streams: list[MessageStream] = []
        self._stream_of: Callable[[str, int], MessageStream]
        self._owned = OwnedPartitions(
            config,
            self._offsets,
            self._lease,
            lambda topic, number: self._stream_of(topic, number),  # noqa: PLW0108  (`_join` replaces it)
            before_commit=before_commit,
            clock=clock,
        )
        self._lock = threading.Lock()  # held while creating streams and while shutting down
        self._member: GroupMember | None = None
        self._watch: GroupWatch | None = None
        self._contested: list[Watch] = []
        self._expiries = self._joined = 0  # in total, and when we last joined; if they differ, rejoin
        self._closed = threading.Event()
        self._changed, self._asked = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._session.listen(self._session_changed)
        self._session.start()

    def create_message_streams(self, streams: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Creates streams for topics, which need not exist yet; all streams of the group share partitions.

        Only one call is allowed: name all topics at once.

        Raises:
            InvalidConfig: a topic has less than one stream.
            InvalidRequest: streams were created already.
            ConsumerIdInUse: another consumer has our ``consumerid``, or its old session has not expired yet;
                try again later.
            ConnectionLost: ZooKeeper does not answer.
        """
        subscription = ConsumerSubscription(streams)
        found = {topic: [self._stream(number) for number in range(count)] for topic, count in streams.items()}
        by_thread = {(topic, one.number): one for topic, several in found.items() for one in several}
        self._join(subscription, list(by_thread.values()), lambda *at: by_thread[at])
        return found

    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[MessageStream]:
        """Creates streams of all matching topics, also future ones. Raises as `create_message_streams`."""
        subscription = topic_filter.subscription(streams)
        numbered = [self._stream(number) for number in range(streams)]
        self._join(subscription, numbered, lambda _, number: numbered[number])
        return numbered

    def commit_offsets(self) -> None:
        """Commits processed messages, including the calling thread's last one.

        Raises:
            ConnectionLost: the store does not answer, or we may no longer own the partitions.
            KafkaError: the store or ``before_commit`` refused.
        """
        partitions = self._owned.partitions()
        for partition in partitions:
            partition.stream.mark_processed()
        self._owned.commit(partitions)

    @property
    def owned(self) -> dict[PartitionKey, str]:
        return {one.key: thread_id(self.consumer_id, one.stream.number) for one in self._owned.partitions()}

    def lag(self) -> dict[PartitionKey, int]:
        """Distance of processed offsets from the ends of the logs: bytes in 0.7, else offsets.

        Sends one request per partition; raises `KafkaError` if a broker does not answer.
        """
        return self._owned.lag()

    def shutdown(self) -> None:
        """Leaves the group and ends the streams; commits first if ``autocommit.enable`` is set.

        Waits half a second for messages being processed. Does not include the calling thread's own message,
        unless it calls `commit_offsets` before. A second call does nothing.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for stream in self._streams:
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
            _log.warning("%s stays in its group until its session expires: %s", self.consumer_id, e)
        finally:
            self._owned.close()
            self._offsets.close()
            self._session.close()

    def __enter__(self) -> ConsumerConnector:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _join(
        self,
        subscription: ConsumerSubscription,
        streams: list[MessageStream],
        stream_of: Callable[[str, int], MessageStream],
    ) -> None:
        with self._lock:
            if self._member is not None or self._closed.is_set():
                raise InvalidRequest("a connector creates streams once, for all its topics; use another one")
            subscription = replace(subscription, by_broker=self.config.assignment_strategy == RANGE_BY_BROKER)
            self._streams, self._stream_of = streams, stream_of
            self._member = member = GroupMember(
                self._session, self._layout, self.config.group_id, self.consumer_id, subscription,
                self._owned, clock=self._clock,
            )  # fmt: skip
            self._joined = self._expiries
            try:
                member.register()
            except ConsumerIdInUse:
                # Perhaps the session of an earlier consumer with our id has not expired yet: allow a retry.
                self._streams, self._member = [], None
                raise
        watch = GroupWatch(self._session, self._layout, self.config.group_id, subscription, self._changed.set)
        self._watch = watch
        watch.start()
        self._changed.set()
        for run in (self._lease_loop, self._rebalance_loop, self._commit_loop):
            thread = threading.Thread(target=run, args=(member,), name=run.__name__.strip("_"), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.SUSPENDED, SessionEvent.LOST):
            self._lease.end()
        if event in (SessionEvent.LOST, SessionEvent.RENEWED):
            self._expiries += 1
            self._changed.set()
        self._asked.set()

    def _lease_loop(self, member: GroupMember) -> None:
        wait_seconds = self.config.zookeeper_session_timeout_ms / 1000 / _LEASE_ROUNDS
        while not self._closed.is_set():
            self._asked.clear()
            joined, asked = self._joined, self._lease.asking()
            try:
                if member.registered():
                    self._lease.confirm(asked)
                    for stream in self._streams:
                        stream.wake()
                elif joined == self._joined == self._expiries:
                    _log.warning("%s is missing from its group, joining again", self.consumer_id)
                    self._lease.end()
                    self._expiries += 1
                    self._changed.set()
            except KafkaError as e:
                _log.warning("no messages are delivered until ZooKeeper answers: %s", e)
            except Exception:
                _log.exception("checking the registration of %s failed", self.consumer_id)
            self._asked.wait(wait_seconds)

    def _rebalance_loop(self, member: GroupMember) -> None:
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
                    _log.error("other consumers do not release %s; still trying", ", ".join(member.contested))
            except KafkaError as e:
                _log.warning("rebalancing %s failed, retrying: %s", self.consumer_id, e)
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
            self._owned.attach(brokers(self._session, self._layout))
        for watch in self._contested:
            watch.cancel()
        self._contested = [self._session.watch_node(path, self._release_claims) for path in member.contested]
        return complete

    def _release_claims(self, owner: bytes | None) -> None:
        if owner is None:
            self._changed.set()

    def _commit_loop(self, member: GroupMember) -> None:  # noqa: ARG002
        if not self.config.auto_commit:
            return
        while not self._closed.wait(self.config.auto_commit_interval_ms / 1000):
            try:
                self._owned.commit(self._owned.partitions())
            except KafkaError as e:
                _log.warning("committing failed, retrying: %s", e)
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
        stream.wanted = self._owned.wake_fetchers
        return stream


def _consumer_id(config: ConnectorConfig, clock: Clock) -> str:
    if config.consumer_id is not None:
        return f"{config.group_id}_{config.consumer_id}"
    return f"{config.group_id}_{socket.gethostname()}-{clock.time_ms()}-{uuid.uuid4().hex[:8]}"
