"""Committed offsets of groups: stored in ``__consumer_offsets``, answered from memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from broker.offsets.pending_offsets import PendingOffsets
from broker.store.manager import LogManager
from broker.store.state_topic import Appended, LastValues, Shard, StateTopic, Stored
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.types import NewRecord, TopicPartition

_Groups = dict[str, dict[TopicPartition, CommittedOffset]]


@dataclass(slots=True)
class _Offsets:
    """*Not thread-safe: its shard's lock guards it.* What the groups of one partition have stored."""

    groups: _Groups = field(default_factory=dict)
    pending: PendingOffsets = field(default_factory=PendingOffsets)


_Shard = Shard[_Offsets]

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
        self._topic: StateTopic[_Offsets] = StateTopic(
            logs, OFFSETS_TOPIC, new=lambda _: _Offsets(), build=_build, create=create, appended=appended
        )
        self.start, self.load, self.open = self._topic.start, self._topic.load, self._topic.open

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Store ``offsets`` for ``group``; returns when they are in the log, and so survive the process.

        Those of a ``producer``, id and epoch, count when its transaction is committed: `end_transaction`.

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
            values = {OffsetKey(group, partition): value for partition, value in offsets.items()}
            records = [NewRecord(encode_value(value), encode_key(key), now) for key, value in values.items()]
            place = self._topic.append(shard, records, producer)
            if producer is not None:
                shard.state.pending.add(producer[0], place, values)
            else:
                shard.state.pending.overtake(values, place)
                shard.state.groups.setdefault(group, {}).update(offsets)

    def partition_of(self, group: str) -> TopicPartition:
        """The partition that keeps the group's offsets, made if need be. Raises `KafkaError`."""
        return self._topic.shard_of(group).partition

    def end_transaction(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> int:
        """Append the marker of a producer's transaction to a partition of the offsets topic, whose offsets
        count from now on, or never. Returns its size in bytes. Raises as `commit`.
        """
        shard = self._topic.shards[partition.partition]
        with shard.lock:
            shard.check_loaded()
            size = self._topic.end_transaction(shard, producer_id, epoch, commit=commit)
            for key, value in shard.state.pending.end(producer_id, commit=commit).items():
                shard.state.groups.setdefault(key.group, {})[key.partition] = value
        return size

    def unstable(self, group: str, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of ``partitions`` for which an open transaction has stored an offset. Raises as `fetch`."""
        if not self._topic.shards:
            return set()
        shard = self._topic.shard_of(group)
        with shard.lock:
            shard.check_loaded()
            return {each for each in partitions if shard.state.pending.has(OffsetKey(group, each))}

    def fetch(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All that ``group`` has stored; empty for a group never heard of.
        Raises `CoordinatorLoading`: the group's partition is still being read.
        """
        if not self._topic.shards:
            return {}
        shard = self._topic.shard_of(group)
        with shard.lock:
            shard.check_loaded()
            return dict(shard.state.groups.get(group, ()))

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
                names += shard.state.groups
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
                    for group, stored in shard.state.groups.items()
                    for partition, value in stored.items()
                    if condemned(partition, value)
                ]
                try:
                    self._delete(shard, gone)
                except KafkaError as e:
                    _log.warning("%d offsets could not be deleted from %s: %s", len(gone), shard.partition, e)

    def _delete(self, shard: _Shard, keys: Sequence[OffsetKey]) -> None:
        """Write the tombstones of ``keys``, then forget them. Caller holds the shard's lock."""
        now = self._clock.time_ms()
        place = self._topic.append(shard, [NewRecord(None, encode_key(key), now) for key in keys])
        shard.state.pending.overtake(keys, place)
        for key in keys:
            stored = shard.state.groups[key.group]
            del stored[key.partition]
            if not stored:
                del shard.state.groups[key.group]


def _build(shard: _Shard, stored: Stored) -> None:
    groups, pending = shard.state.groups, shard.state.pending
    for producer_id, found in stored.open.items():
        for key, place, value in _decoded(shard, found):
            if value is not None:
                pending.add(producer_id, place, {key: value})
    for key, place, value in _decoded(shard, stored.last):
        pending.overtake((key,), place)
        if value is not None:
            groups.setdefault(key.group, {})[key.partition] = value


def _decoded(shard: _Shard, found: LastValues) -> Iterator[tuple[OffsetKey, int, CommittedOffset | None]]:
    """The records of offsets, with their own offsets in the log; None where one was deleted."""
    for key_bytes, (offset, value) in found.items():
        try:
            key = decode_key(key_bytes)
            if key is not None:
                yield key, offset, None if value is None else decode_value(value)
        except CorruptMessage as e:
            _log.warning("%s: offset %d is skipped: %s", shard.partition, offset, e)
