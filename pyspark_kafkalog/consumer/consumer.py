"""`Consumer`: reads topics as a group member, or partitions chosen by the program."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from pyspark_kafkalog import errors
from pyspark_kafkalog.client import groups
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import OffsetAndTimestamp, list_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import Offsets
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import CLASSIC, COOPERATIVE, EARLIEST, LATEST, GroupConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.group_thread import GroupThread, TopicLookUp
from pyspark_kafkalog.consumer.member import PartitionChange, Rebalance
from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord, Reading, RecordFetcher
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition

logger = logging.getLogger(__name__)

OnPartitions = Callable[[list[TopicPartition]], object]
"""Called in `Consumer.poll` with assigned, revoked or lost partitions."""

_RESETS = {EARLIEST: EARLIEST_TIMESTAMP, LATEST: LATEST_TIMESTAMP}

_STEP_SECONDS = 1.0  # limit for a look-up or commit within a poll(); the next one retries

_UPKEEP_SECONDS = 0.1  # how often iteration over records polls for group changes and due commits

_COMMIT_SECONDS = 5.0  # limit for the commit before a revocation, which delays the whole group

_NEW_EPOCH_SECONDS = 0.05
"""Wait for the member's next epoch or generation after a commit with the previous one."""

_OLD_EPOCH = frozenset({errors.ErrorCode.STALE_MEMBER_EPOCH})
_OLD_GENERATION = frozenset({errors.ErrorCode.ILLEGAL_GENERATION, errors.ErrorCode.REBALANCE_IN_PROGRESS})
"""Commit errors of a member that is about to get its next epoch or generation. Only a cooperative member of a
classic group still owns its partitions then."""


class Consumer:
    """*Not thread-safe: one thread at a time.* Reads records and commits positions.

        with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "dashboard"}) as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                print(record.partition, record.offset, record.value)

    A thread sends heartbeats; everything else, including callbacks, happens in method calls. So call `poll`
    at least every ``max.poll.interval.ms``. A later `poll` commits the records returned before it
    (``enable.auto.commit``), or call `commit`. After a failure, uncommitted records are read again.
    """

    def __init__(
        self, config: Mapping[str, object] | GroupConsumerConfig, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Connects on first use. Raises `InvalidConfig`."""
        if not isinstance(config, GroupConsumerConfig):
            config = parse(GroupConsumerConfig, config, source="consumer")
        self.config = config
        self._clock = clock
        self._cluster = Cluster(config, clock=clock)
        self._fetcher = RecordFetcher(self._cluster, config, clock, self._out_of_range)
        self._group: GroupThread | None = None
        self._subscribed: frozenset[str] | re.Pattern[str] | None = None
        self._callbacks: dict[PartitionChange, OnPartitions | None] = {}
        self._ready: deque[ConsumerRecord] = deque()
        self._committed: dict[TopicPartition, int] = {}
        self._news = self._closed = False
        self._upkeep_at = self._commit_at = self._look_at = 0.0
        self._look_failures = 0
        self._commits = config.enable_auto_commit and config.group_id is not None
        cooperative = config.group_protocol == CLASSIC and set(config.strategies) == {COOPERATIVE}
        self._passing = _OLD_GENERATION if cooperative else _OLD_EPOCH

    def subscribe(
        self,
        topics: Iterable[str] | str = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Subscribes to ``topics``, or to all whose full names match ``pattern``, as a member of the group.

        The first `poll` joins the group; a later call replaces the topics. Callbacks run in `poll` and
        `close`: ``on_assigned`` before the first record of new partitions; ``on_revoked`` before partitions
        move, while their offsets can still be committed; ``on_lost`` (default: ``on_revoked``) when others
        may already have them.

        Raises:
            InvalidConfig: ``group.id`` is not set.
            InvalidRequest: neither or both of topics and pattern are given, or `assign` was called before.
        """
        self._check_open()
        names = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise errors.InvalidRequest("subscribe() takes topics or a pattern: one of them")
        if self.config.group_id is None:
            raise errors.InvalidConfig("subscribe() needs group.id, which is not set; assign() does without")
        if self._subscribed is None and self._fetcher.readings:
            raise errors.InvalidRequest("partitions were chosen by assign(): call unsubscribe() first")
        self._subscribed = names if pattern is None else re.compile(pattern)
        self._callbacks = {
            PartitionChange.ASSIGNED: on_assigned,
            PartitionChange.REVOKED: on_revoked,
            PartitionChange.LOST: on_lost or on_revoked,
        }
        if self._group is not None:
            self._group.resubscribe(self._topics())

    def unsubscribe(self) -> None:
        """Leaves the group, or drops the partitions given to `assign`."""
        self._check_open()
        self._leave(Deadline.after(_COMMIT_SECONDS, self._clock))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without joining a group; positions of partitions already assigned stay.

        Offsets still belong to ``group.id``, if set. Raises `InvalidRequest` after `subscribe`.
        """
        self._check_open()
        if self._subscribed is not None:
            raise errors.InvalidRequest("topics were subscribed to: call unsubscribe() first")
        if not self._fetcher.readings:
            self._commit_at = self._next_commit()
        self._assign(TopicPartition(*tp) for tp in partitions)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._fetcher.readings)

    @property
    def subscription(self) -> frozenset[str] | re.Pattern[str] | None:
        return self._subscribed

    @property
    def member_id(self) -> str:
        """Its id in the group; empty if it is not a member."""
        return self._identity().member_id

    @property
    def group_metadata(self) -> groups.GroupMetadata:
        """Group and member id, for `Producer.send_offsets_to_transaction`."""
        return groups.GroupMetadata(self._group_id(), self._identity())

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each assigned partition, as far as known."""
        return dict(self._positions())

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most ``max.poll.records``; waits up to ``timeout`` seconds for the first.

        Records of a partition are in offset order. Also joins the group, runs callbacks, and commits records
        of previous calls when due.

        Raises:
            NoOffset: no committed offset, and ``auto.offset.reset`` is none.
            OffsetOutOfRange: the position is not in the log, and ``auto.offset.reset`` is none.
            CorruptMessage, MessageTooLarge, UnsupportedCompression: bad data at the position, until `seek`.
            ServerError: the group refuses this member, such as FENCED_INSTANCE_ID.
            BrokersUnreachable: no broker has ever answered.
        """
        self._check_open()
        most = self.config.max_poll_records if max_records is None else max_records
        if self._group is None and self._subscribed is not None:
            self._group = GroupThread(self.config, self._topics(), self._clock, notify=self._notify)
            self._commit_at = self._next_commit()
        if self._group is not None:
            self._group.set_polling(True)
        try:
            return self._poll(most, Deadline.after(timeout, self._clock))
        finally:
            if self._group is not None:
                self._group.set_polling(False)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits without limit. A record counts as processed when the next one is taken."""
        if self._ready and not self._news and self._clock.monotonic() < self._upkeep_at:
            return self._ready.popleft()
        while not self._closed:
            self._ready.extendleft(reversed(self.poll()))
            self._upkeep_at = self._clock.monotonic() + _UPKEEP_SECONDS
            if self._ready:
                return self._ready.popleft()
        raise StopIteration

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commits the positions, or ``offsets``: the next offset to read, optionally with metadata.

        Raises:
            CommitFailed: the group rebalanced without this member; records may be read again.
            InvalidConfig: ``group.id`` is not set.
            RequestTimedOut, ...: not committed within ``default.api.timeout.ms``.
        """
        self._check_open()
        wanted = dict(self._positions() if offsets is None else offsets)
        self._commit(wanted, self._api_deadline())

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, groups.CommittedOffset]:
        """The group's committed offsets; omits partitions without one."""
        self._check_open()
        return self._committed_of([TopicPartition(*tp) for tp in partitions], self._api_deadline())

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record; looked up if unknown. Raises as `poll`."""
        reading = self._reading(partition)
        deadline = self._api_deadline()
        if reading.position is None:
            attempts = self._cluster.retrying(f"finding the position in {partition}", deadline)
            attempts.run(self._find_positions)
        return self._positions()[TopicPartition(*partition)]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues reading at ``offset``."""
        if offset < 0:
            raise errors.InvalidRequest(f"{partition}: offset {offset} is below 0")
        reading = self._reading(partition)
        self._drop_ready([reading.tp])
        reading.seek(offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continues at the first offset of these partitions, or of all assigned ones."""
        self._seek_time(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continues at the end, as of the next `poll`, of these partitions, or of all assigned ones."""
        self._seek_time(partitions, LATEST_TIMESTAMP)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a time in milliseconds; None if there is none."""
        found = self._list(times_ms)
        return {tp: one if one.offset >= 0 else None for tp, one in found.items()}

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._list(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        return {tp: one.offset for tp, one in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition; with read_committed, the start of its first open transaction."""
        found = self._list(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        return {tp: one.offset for tp, one in found.items()}

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; empty if it does not exist."""
        self._check_open()
        found = self._cluster.metadata([topic], refresh=True, deadline=self._api_deadline()).topics[topic]
        return [TopicPartition(topic, number) for number in found.partitions]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns no records of these partitions until `resume`; they stay assigned."""
        for tp in partitions:
            reading = self._reading(tp)
            held = next((r.offset for r in self._ready if r.topic_partition == reading.tp), None)
            if held is not None:
                self._drop_ready([reading.tp])
                reading.seek(held)
            reading.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._reading(tp).paused = False

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(tp for tp, reading in self._fetcher.readings.items() if reading.paused)

    def close(self, timeout: float = 30.0) -> None:
        """Commits (``enable.auto.commit``), calls ``on_revoked``, leaves the group and closes connections.

        A static member does not leave: its partitions stay reserved until ``session.timeout.ms`` has passed.
        Closing again does nothing.
        """
        if self._closed:
            return
        try:
            self._leave(Deadline.after(timeout, self._clock))
        finally:
            self._closed = True
            self._fetcher.close()
            self._cluster.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _poll(self, most: int, deadline: Deadline) -> list[ConsumerRecord]:
        last = False
        while True:
            self._upkeep()
            if self._ready:
                return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            records = self._fetcher.take(most)
            if records or last:
                self._fetcher.send_ahead()
                return records
            self._fetcher.wait(min(deadline.left, max(self._commit_at - self._clock.monotonic(), 0.01)))
            last = deadline.passed

    def _upkeep(self) -> None:
        self._news = False
        while self._group is not None and (rebalance := self._group.pending()) is not None:
            try:
                self._rebalance(rebalance)
            finally:
                self._group.done(rebalance)
        now = self._clock.monotonic()
        if now >= self._commit_at:
            self._commit_at = self._next_commit()
            self._auto_commit(_STEP_SECONDS)
        if now >= self._look_at and any(r.position is None for r in self._fetcher.readings.values()):
            try:
                self._find_positions(Deadline.after(_STEP_SECONDS, self._clock))
                self._look_failures = 0
            except errors.KafkaError as e:
                if not e.retriable:
                    raise
                self._look_failures += 1
                self._look_at = now + self._cluster.retry.backoff(self._look_failures)
                logger.info("looking up positions: %s; trying again", e)

    def _rebalance(self, rebalance: Rebalance) -> None:
        change, callback = rebalance.change, self._callbacks.get(rebalance.change)
        if change is PartitionChange.ASSIGNED:
            self._assign(rebalance.owned)
            logger.info("assigned: %s", ", ".join(map(str, rebalance.partitions)) or "nothing")
            if callback is not None:
                callback(list(rebalance.partitions))
            return
        is_revoked = change is PartitionChange.REVOKED
        gone = list(rebalance.partitions) if is_revoked else sorted(self._fetcher.readings)
        logger.info("%s: %s", change.value, ", ".join(map(str, gone)) or "nothing")
        if is_revoked:
            self._auto_commit(_COMMIT_SECONDS)
        try:
            if callback is not None and gone:
                callback(gone)
        finally:
            self._assign(rebalance.owned)

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        before = self._fetcher.readings.keys()
        self._fetcher.assign(partitions)
        gone = before - self._fetcher.readings.keys()
        self._drop_ready(gone)
        for tp in gone:
            self._committed.pop(tp, None)

    def _leave(self, deadline: Deadline) -> None:
        try:
            self._auto_commit(min(deadline.left, _COMMIT_SECONDS))
            callback, gone = self._callbacks.get(PartitionChange.REVOKED), sorted(self._fetcher.readings)
            if callback is not None and gone:
                callback(gone)
        finally:
            group, self._group, self._subscribed = self._group, None, None
            self._assign(())
            if group is not None:
                group.stop(deadline)

    def _auto_commit(self, seconds: float) -> None:
        if not self._commits:
            return
        positions = self._positions().items()
        changed = {tp: offset for tp, offset in positions if self._committed.get(tp) != offset}
        if not changed:
            return
        try:
            self._commit(changed, Deadline.after(seconds, self._clock))
        except errors.KafkaError as e:
            logger.warning("committing automatically failed: %s", e)

    def _commit(self, offsets: Offsets, deadline: Deadline) -> None:
        group = self._group_id()
        if not offsets:
            return
        while True:
            member = self._identity()
            if self._subscribed is not None and member.generation < 0:
                raise errors.CommitFailed(
                    errors.ErrorCode.UNKNOWN_MEMBER_ID,
                    f"group {group!r}: this consumer is not a member at present: it has not joined yet, or "
                    "was removed. poll() joins; records since the last commit will be read again",
                )
            try:
                groups.commit_offsets(self._cluster, group, offsets, member=member, deadline=deadline)
                break
            except errors.CommitFailed as e:
                if e.code not in self._passing or deadline.left < _NEW_EPOCH_SECONDS:
                    raise
                self._clock.sleep(_NEW_EPOCH_SECONDS)
        for tp, one in offsets.items():
            self._committed[TopicPartition(*tp)] = one if isinstance(one, int) else one.offset

    def _committed_of(
        self, partitions: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, groups.CommittedOffset]:
        stable, group = self.config.isolation is IsolationLevel.READ_COMMITTED, self._group_id()
        return groups.committed_offsets(self._cluster, group, partitions, stable=stable, deadline=deadline)

    def _identity(self) -> groups.Committer:
        return groups.OUTSIDE if self._group is None else self._group.identity

    def _find_positions(self, deadline: Deadline) -> None:
        unknown = {tp: r for tp, r in self._fetcher.readings.items() if r.position is None}
        fresh = [tp for tp, r in unknown.items() if r.reset is None]
        if fresh and self.config.group_id is not None:
            for tp, one in self._committed_of(fresh, deadline).items():
                unknown[tp].seek(one.offset)
                self._committed[tp] = one.offset
        for tp, reading in unknown.items():
            if reading.position is None and reading.reset is None:
                self._reset(
                    reading, errors.NoOffset(f"{tp}: group {self.config.group_id!r} has no offset for it")
                )
        times = {tp: r.reset for tp, r in unknown.items() if r.position is None and r.reset is not None}
        if times:
            isolation = self.config.isolation
            offsets = list_offsets(self._cluster, times, isolation=isolation, deadline=deadline)
            for tp, found in offsets.items():
                unknown[tp].seek(found.offset)

    def _out_of_range(self, reading: Reading, error: errors.KafkaError) -> None:
        logger.warning("%s; auto.offset.reset=%s", error, self.config.auto_offset_reset)
        self._drop_ready([reading.tp])
        self._reset(reading, error)

    def _reset(self, reading: Reading, error: errors.KafkaError) -> None:
        timestamp = _RESETS.get(self.config.auto_offset_reset)
        if timestamp is None:
            if isinstance(error, errors.NoOffset):
                error = type(error)(f"{error}, and auto.offset.reset is none")
            raise error
        reading.seek_time(timestamp)

    def _seek_time(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        self._check_open()
        for tp in list(partitions) or list(self._fetcher.readings):
            reading = self._reading(tp)
            self._drop_ready([reading.tp])
            reading.seek_time(timestamp)

    def _list(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_open()
        wanted = {TopicPartition(*tp): time for tp, time in times.items()}
        isolation = self.config.isolation
        return list_offsets(self._cluster, wanted, isolation=isolation, deadline=self._api_deadline())

    def _positions(self) -> dict[TopicPartition, int]:
        """Positions of the partitions; records the program has not seen yet are not passed."""
        found = {tp: r.position for tp, r in self._fetcher.readings.items() if r.position is not None}
        for record in reversed(self._ready):
            found[record.topic_partition] = record.offset
        return found

    def _drop_ready(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        if gone and self._ready:
            self._ready = deque(r for r in self._ready if r.topic_partition not in gone)

    def _reading(self, partition: TopicPartition) -> Reading:
        self._check_open()
        found = self._fetcher.readings.get(TopicPartition(*partition))
        if found is None:
            raise errors.InvalidRequest(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return found

    def _group_id(self) -> str:
        if self.config.group_id is None:
            raise errors.InvalidConfig("offsets are committed for group.id, which is not set")
        return self.config.group_id

    def _topics(self) -> TopicLookUp:
        subscribed, all_of_them = self._subscribed, not self.config.exclude_internal_topics

        def found(cluster: Cluster, deadline: Deadline) -> frozenset[str]:
            if not isinstance(subscribed, re.Pattern):
                return subscribed or frozenset()
            every = cluster.metadata(None, refresh=True, deadline=deadline).topics
            return frozenset(
                name
                for name, topic in every.items()
                if subscribed.fullmatch(name) and (all_of_them or not topic.is_internal)
            )

        return found

    def _notify(self) -> None:
        self._news = True
        self._fetcher.wake()

    def _next_commit(self) -> float:
        return self._clock.monotonic() + self.config.auto_commit_interval_ms / 1000

    def _api_deadline(self) -> Deadline:
        return Deadline.after(self.config.default_api_timeout_ms / 1000, self._clock)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.KafkaError("the consumer is closed")
