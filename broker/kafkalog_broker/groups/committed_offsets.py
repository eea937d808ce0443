"""Committed offsets of groups: commits, transactions, fetches, deletion and expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

from kafkalog_broker.groups.classic_group import ClassicGroup
from kafkalog_broker.groups.classic_rules import CONSUMER, Moment, Phase
from kafkalog_broker.groups.consumer_group import MEMBER_EPOCHS_SINCE, check_commit, check_fetch
from kafkalog_broker.groups.group import (
    Group,
    GroupShard,
    GroupTopic,
    NoSuchGroup,
    as_coordinator,
    known_group,
)
from kafkalog_broker.logs.offset_records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafkalog_broker.logs.state_topic import LastValues, Shard, Stored, encode_records
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.scheduler import Sweep
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CoordinatorLoading, CorruptMessage, ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.types import NewRecord, TopicPartition

_log = logging.getLogger(__name__)

_Shard = Shard[GroupShard]
_Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(eq=False)
class GroupOffsets:
    """*Thread-safe: a group's offsets are guarded by its shard's lock.* Stored in the log first.

    ``new_classic`` creates an empty group, whose rules apply to groups that do not exist. An offset of a
    deleted topic does not count for a new topic of that name: its topic id is another one. ``newest_topics``
    are those of the whole cluster at the time of the call, which may ask ZooKeeper.
    """

    topic: GroupTopic
    clock: Clock
    _: KW_ONLY
    retention_ms: int
    new_classic: Callable[[], ClassicGroup]
    newest_topics: Callable[[], Mapping[str, StoredTopic]]
    _expiry: Sweep = field(default_factory=lambda: Sweep("expiring offsets"), init=False)

    def commit(
        self,
        name: str,
        offsets: _Offsets,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        producer: tuple[int, int] | None = None,
        version: int = MEMBER_EPOCHS_SINCE,
    ) -> None:
        """A negative generation is a commit from outside the group; ``version`` is that of OffsetCommit. With
        a ``producer`` (id, epoch) the offsets count once `end_transaction` commits. Raises, with nothing
        stored, `NoSuchGroup`, `CoordinatorLoading`, or `KafkaError`: the member may not, or the log refused.
        """
        if not offsets:
            return
        shard = self.topic.shard_for(name)
        encoded = _encoded(name, offsets, self.clock.time_ms(), producer)  # before others wait for the lock
        with shard.lock:
            shard.check_loaded()
            group = shard.state.groups.get(name)
            if group is None and generation >= 0:
                raise NoSuchGroup(name)
            group = group or Group(name)
            in_transaction = producer is not None
            if group.consumer is not None:
                check_commit(group.consumer, member_id, generation, None if in_transaction else version)
            else:
                # A group with offsets only has no generation, and answers like an empty one.
                classic = group.classic or self.new_classic()
                code = classic.check_commit(
                    member_id, instance_id, generation, Moment.now(self.clock), in_transaction=in_transaction
                )
                if code is not ErrorCode.NONE:
                    raise ServerError(code, f"group {name!r} in state {group.state}: member {member_id!r}")
            values = {OffsetKey(name, partition): value for partition, value in offsets.items()}
            try:
                place = self.topic.append_encoded(shard, encoded)
            except KafkaError as e:
                raise as_coordinator(e) from e
            if producer is not None:
                shard.state.pending.add(producer[0], place, values)
                return
            shard.state.pending.overtake(values, place)
            group.offsets.update(offsets)
            shard.state.groups[name] = group

    def end_transaction(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> int:
        """Appends a marker; the offsets then count or are dropped. Returns its size. Raises as `commit`."""
        if partition.partition >= len(self.topic.shards):
            raise CoordinatorLoading(f"{partition} is not known here yet")
        shard = self.topic.shards[partition.partition]
        with shard.lock:
            shard.check_loaded()
            size = self.topic.end_transaction(shard, producer_id, epoch, commit=commit)
            for key, value in shard.state.pending.end(producer_id, commit=commit).items():
                shard.state.group(key.group).offsets[key.partition] = value
        return size

    def unstable(self, name: str, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        self.topic.check_found()
        if not self.topic.shards:
            return set()
        shard = self.topic.shard_of(name)
        with shard.lock:
            shard.check_loaded()
            pending = {each: shard.state.pending.of(OffsetKey(name, each)) for each in partitions}
        topics = self.newest_topics() if any(pending.values()) else {}
        return {p for p, values in pending.items() if not all(_is_replaced(p, v, topics) for v in values)}

    def fetch(self, name: str, member_id: str | None = None, epoch: int = -1) -> _Offsets:
        """All committed offsets of the group; empty if it is unknown. Members of the new protocol give their
        id and epoch. Raises `CoordinatorLoading`, and `ServerError`: unknown member or stale epoch.
        """

        def committed(group: Group) -> _Offsets:
            if group.consumer is not None:
                check_fetch(group.consumer, member_id, epoch)
            return dict(group.offsets)

        try:
            offsets = self.topic.look_at(name, committed)
        except NoSuchGroup:
            return {}
        topics = self.newest_topics() if offsets else {}
        return {p: value for p, value in offsets.items() if not _is_replaced(p, value, topics)}

    def delete(self, name: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Deletes offsets, except of subscribed topics. Raises `NoSuchGroup`, or `KafkaError`."""
        shard = self.topic.known_shard(name)
        with shard.lock:
            group = known_group(shard, name)
            classic = group.classic
            in_use = group.consumer.all_subscribed() if group.consumer is not None else frozenset[str]()
            if classic is not None and classic.phase is not Phase.EMPTY:
                if classic.protocol_type != CONSUMER:
                    raise ServerError(ErrorCode.NON_EMPTY_GROUP, f"group {name!r} is in state {group.state}")
                subscribed = classic.subscribed_topics()
                in_use = frozenset(p.topic for p in partitions) if subscribed is None else subscribed
            codes = {
                p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if p.topic in in_use else ErrorCode.NONE
                for p in partitions
            }
            gone = [p for p, code in codes.items() if not code and p in group.offsets]
            self.delete_records(shard, group, gone)
        return codes

    def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Delete the offsets of a deleted topic, as far as groups are loaded here. What is left does not
        count for a new topic of this name.
        """
        for shard, group in self._each_group():
            with shard.lock:
                if shard.state.groups.get(group.name) is group:
                    of_topic = [p for p in group.offsets if p.topic == topic]
                    gone = [p for p in of_topic if group.offsets[p].topic_id in (topic_id, ZERO_UUID)]
                    try:
                        self.delete_records(shard, group, gone)
                    except KafkaError as e:
                        _log.warning(
                            "%d offsets could not be deleted from %s: %s", len(gone), shard.partition, e
                        )

    def expire(self) -> None:
        """Deletes offsets older than ``offsets.retention.minutes``, or than the commit's own limit, and empty
        groups without offsets. The age counts from when the group became empty, otherwise from the commit.
        Subscribed topics and offsets in an open transaction do not expire. Offsets of a topic that has been
        replaced by another go at once.
        """
        now_ms, topics = self.clock.time_ms(), self.newest_topics()

        def expire(place: tuple[_Shard, Group]) -> None:
            shard, group = place
            with shard.lock:
                if shard.state.groups.get(group.name) is group:
                    gone = self._expired(shard, group, now_ms)
                    replaced = [p for p, v in group.offsets.items() if _is_replaced(p, v, topics)]
                    gone = list(dict.fromkeys((*gone, *replaced)))
                    whole = group.is_idle and len(gone) == len(group.offsets)
                    self.delete_records(shard, group, gone, whole=whole)

        self._expiry.run(((group.name, (shard, group)) for shard, group in self._each_group()), expire)

    def _expired(self, shard: _Shard, group: Group, now_ms: int) -> list[TopicPartition]:
        classic, since_ms = group.classic, -1
        in_use = group.consumer.all_subscribed() if group.consumer is not None else frozenset[str]()
        if classic is not None and classic.phase is Phase.EMPTY:
            since_ms = classic.since_ms
        elif classic is not None:
            if classic.phase is not Phase.STABLE or classic.protocol_type != CONSUMER:
                return []
            subscribed = classic.subscribed_topics()
            if subscribed is None:
                return []
            in_use = subscribed
        retention_ms = self.retention_ms
        return [
            partition
            for partition, value in group.offsets.items()
            if value.is_expired(now_ms, retention_ms, since_ms)
            and partition.topic not in in_use
            and not shard.state.pending.of(OffsetKey(group.name, partition))
        ]

    def _each_group(self) -> Iterator[tuple[_Shard, Group]]:
        """All loaded groups, without locks; check under the lock that a group still exists."""
        for shard in self.topic.shards:
            with shard.lock:
                groups = tuple(shard.state.groups.values()) if shard.loaded else ()
            for group in groups:
                yield shard, group

    def delete_records(
        self, shard: _Shard, group: Group, gone: Sequence[TopicPartition], *, whole: bool = False
    ) -> None:
        """Writes tombstones for these offsets, and the group if ``whole``. Caller holds the lock."""
        now_ms = self.clock.time_ms()
        keys = [OffsetKey(group.name, partition) for partition in gone]
        records = [NewRecord(None, encode_key(key), now_ms) for key in keys]
        if whole:
            records += group.tombstones(now_ms)
        if records:
            shard.state.pending.overtake(keys, self.topic.append(shard, records))
        for partition in gone:
            del group.offsets[partition]
        if whole or group.is_void:
            del shard.state.groups[group.name]

    def load(self, shard: _Shard, stored: Stored) -> None:
        for producer_id, found in stored.open.items():
            for key, place, value in decoded_offsets(shard.partition, found):
                if value is not None:
                    shard.state.pending.add(producer_id, place, {key: value})
        for key, place, value in decoded_offsets(shard.partition, stored.last):
            shard.state.pending.overtake((key,), place)
            if value is not None:
                shard.state.group(key.group).offsets[key.partition] = value


def _is_replaced(
    partition: TopicPartition, value: CommittedOffset, topics: Mapping[str, StoredTopic]
) -> bool:
    topic = topics.get(partition.topic)
    return topic is not None and value.topic_id not in (topic.topic_id, ZERO_UUID)


def _encoded(name: str, offsets: _Offsets, now_ms: int, producer: tuple[int, int] | None) -> bytearray:
    records = [
        NewRecord(encode_value(value), encode_key(OffsetKey(name, partition)), now_ms)
        for partition, value in offsets.items()
    ]
    return encode_records(records, producer)


def decoded_offsets(
    keeper: TopicPartition, found: LastValues
) -> Iterator[tuple[OffsetKey, int, CommittedOffset | None]]:
    """Each key with the record's own offset and the committed offset; None for a deletion."""
    for key_bytes, (offset, value) in found.items():
        try:
            key = decode_key(key_bytes)
            if key is not None:
                yield key, offset, None if value is None else decode_value(value)
        except CorruptMessage as e:
            _log.warning("%s: offset %d is skipped: %s", keeper, offset, e)
