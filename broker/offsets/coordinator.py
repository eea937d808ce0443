"""Committed offsets of groups: stored in ``__consumer_offsets``, answered from memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from broker.offsets.offset_records import (
    NO_EXPIRY,
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker.store.manager import LogManager
from broker.store.state_topic import Appended, Shard, StateTopic, Stored
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.types import NewRecord, TopicPartition

_Groups = dict[str, dict[TopicPartition, CommittedOffset]]

_log = logging.getLogger(__name__)


class OffsetCoordinator:
    """*Thread-safe.* Offsets of every group; each partition's share is guarded by its shard's own lock."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        *,
        retention_ms: int,
        create: Callable[[], int],
        appended: Appended,
    ) -> None:
        """``create`` makes the offsets topic and returns its partition count; it is called on first need."""
        self._clock = clock
        self._retention_ms = retention_ms
        self._topic: StateTopic[_Groups] = StateTopic(
            logs, OFFSETS_TOPIC, new=lambda _: {}, build=_build, create=create, appended=appended
        )
        self.start, self.load, self.open = self._topic.start, self._topic.load, self._topic.open

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store ``offsets`` for ``group``; returns when they are in the log, and so survive the process.

        Raises:
            CoordinatorLoading: the group's partition is still being read; nothing is stored.
            KafkaError: the log refused the append; nothing is stored.
        """
        if not offsets:
            return
        shard = self._topic.shard_of(group)
        with shard.lock:
            shard.check_loaded()
            now = self._clock.time_ms()
            self._topic.append(
                shard,
                [
                    NewRecord(encode_value(value), encode_key(OffsetKey(group, partition)), now)
                    for partition, value in offsets.items()
                ],
            )
            shard.state.setdefault(group, {}).update(offsets)

    def fetch(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All that ``group`` has stored; empty for a group never heard of.
        Raises `CoordinatorLoading`: the group's partition is still being read.
        """
        if not self._topic.shards:
            return {}
        shard = self._topic.shard_of(group)
        with shard.lock:
            shard.check_loaded()
            return dict(shard.state.get(group, ()))

    def knows(self, group: str) -> bool:
        """Whether ``group`` has stored anything.
        Raises `CoordinatorLoading`: the group's partition is still being read.
        """
        return bool(self.fetch(group))

    def groups(self) -> list[str]:
        """The names of all groups that have stored something, in order.
        Raises `CoordinatorLoading`: a partition is still being read, and its groups are not known.
        """
        names: list[str] = []
        for shard in self._topic.shards:
            with shard.lock:
                shard.check_loaded()
                names += shard.state
        return sorted(names)

    def forget_topic(self, topic: str) -> None:
        """Delete what all groups stored for ``topic``: a new topic of its name starts without offsets.

        Where the disk refuses, the offsets stay, and a warning is logged.
        """
        self._forget(lambda partition, _: partition.topic == topic)

    def expire(self) -> None:
        """Delete offsets older than ``offsets.retention.minutes``, or than the commit itself asked for.

        No group has members here, so age counts from each partition's last commit. What the disk refuses
        to delete is tried again the next time.
        """
        now = self._clock.time_ms()

        def expired(_: TopicPartition, value: CommittedOffset) -> bool:
            if value.expire_timestamp_ms != NO_EXPIRY:
                return value.expire_timestamp_ms <= now
            return value.commit_timestamp_ms + self._retention_ms <= now

        self._forget(expired)

    def _forget(self, condemned: Callable[[TopicPartition, CommittedOffset], bool]) -> None:
        for shard in self._topic.shards:
            with shard.lock:
                if not shard.loaded:
                    continue
                gone = [
                    OffsetKey(group, partition)
                    for group, stored in shard.state.items()
                    for partition, value in stored.items()
                    if condemned(partition, value)
                ]
                try:
                    self._delete(shard, gone)
                except KafkaError as e:
                    _log.warning("%d offsets could not be deleted from %s: %s", len(gone), shard.partition, e)

    def _delete(self, shard: Shard[_Groups], keys: Sequence[OffsetKey]) -> None:
        """Write the tombstones of ``keys``, then forget them. Caller holds the shard's lock."""
        now = self._clock.time_ms()
        self._topic.append(shard, [NewRecord(None, encode_key(key), now) for key in keys])
        for key in keys:
            stored = shard.state[key.group]
            del stored[key.partition]
            if not stored:
                del shard.state[key.group]


def _build(shard: Shard[_Groups], stored: Stored) -> None:
    for offset, key_bytes, value in stored.values():
        try:
            key = decode_key(key_bytes)
            if key is not None:
                shard.state.setdefault(key.group, {})[key.partition] = decode_value(value)
        except CorruptMessage as e:
            _log.warning("%s: offset %d is skipped: %s", shard.partition, offset, e)
