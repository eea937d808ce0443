"""Committed offsets of groups: stored in ``__consumer_offsets``, answered from memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from broker.log.log import Log
from broker.offsets.offset_records import (
    NO_EXPIRY,
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    partition_for,
)
from broker.store.manager import LogManager
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import CoordinatorLoading, CorruptMessage, KafkaError
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.types import NewRecord, TopicPartition

_LOAD_BYTES = 1 << 20
"""Read so much of the log at a time while loading."""

_BATCH_BYTES = 512 << 10
"""Commits above this go into the log as several batches, each below the default ``max.message.bytes``."""

_RECORD_OVERHEAD = 32
"""A bound of a record's own bytes beside its key and value."""

Appended = Callable[[TopicPartition, int], None]
"""Called with each append and its size in bytes, so that fetches of the offsets topic wake up."""

_Entry = tuple[OffsetKey, bytes, bytes]
"""A key, its bytes, and its value's bytes."""

_log = logging.getLogger(__name__)


class _Shard:
    """*Thread-safe: ``lock`` guards all.* The groups of one partition of the offsets topic.

    The lock is held over append and cache, so that the cache has the order of the log.
    """

    def __init__(self, partition: int) -> None:
        self.partition = TopicPartition(OFFSETS_TOPIC, partition)
        self.lock = threading.Lock()
        self.loaded = False
        self.groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def check_loaded(self) -> None:
        """Caller holds the lock.
        Raises `CoordinatorLoading`: what earlier runs stored has not been read yet.
        """
        if not self.loaded:
            raise CoordinatorLoading(f"{self.partition} is still being loaded")


class OffsetCoordinator:
    """*Thread-safe.* Offsets of every group; each partition's share is guarded by its shard's own lock.

    ``_shards`` is replaced as a whole, under ``_opening``, when the offsets topic is made or found.
    """

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
        self._logs = logs
        self._clock = clock
        self._retention_ms = retention_ms
        self._create = create
        self._appended = appended
        self._opening = threading.Lock()
        self._shards: tuple[_Shard, ...] = ()

    def start(self) -> None:
        """Find the offsets topic if an earlier run made it. `load` then reads it; until then error 14."""
        topic = self._logs.topics().get(OFFSETS_TOPIC)
        if topic is not None:
            self._shards = tuple(_Shard(p) for p in topic.partitions)

    def load(self) -> None:
        """Read every partition of the offsets topic into memory; returns when all that can be are loaded."""
        for shard in self._shards:
            try:
                self._load_shard(shard)
            except KafkaError as e:
                _log.error("%s cannot be loaded, its groups stay unavailable: %s", shard.partition, e)
            except (OSError, EOFError):
                _log.exception("%s cannot be loaded, its groups stay unavailable", shard.partition)

    def open(self) -> None:
        """Make the offsets topic if there is none yet. Raises `KafkaError`: it cannot be made."""
        with self._opening:
            if not self._shards:
                shards = tuple(_Shard(p) for p in range(self._create()))
                for shard in shards:
                    shard.loaded = True
                self._shards = shards

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store ``offsets`` for ``group``; returns when they are in the log, and so survive the process.

        Raises:
            CoordinatorLoading: the group's partition is still being read; nothing is stored.
            KafkaError: the log refused the append.
        """
        if not offsets:
            return
        shard = self._shard(group)
        with shard.lock:
            shard.check_loaded()
            now = self._clock.time_ms()
            entries = [
                (key, encode_key(key), encode_value(value))
                for key, value in ((OffsetKey(group, p), v) for p, v in offsets.items())
            ]
            for chunk in _chunks(entries):
                self._append(shard, [NewRecord(value, key, now) for _, key, value in chunk])
                stored = shard.groups.setdefault(group, {})
                for key, _, _ in chunk:
                    stored[key.partition] = offsets[key.partition]

    def fetch(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All that ``group`` has stored; empty for a group never heard of.
        Raises `CoordinatorLoading`: the group's partition is still being read.
        """
        if not self._shards:
            return {}
        shard = self._shard(group)
        with shard.lock:
            shard.check_loaded()
            return dict(shard.groups.get(group, ()))

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
        for shard in self._shards:
            with shard.lock:
                shard.check_loaded()
                names += shard.groups
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

    def _shard(self, group: str) -> _Shard:
        if not self._shards:
            self.open()
        return self._shards[partition_for(group, len(self._shards))]

    def _forget(self, condemned: Callable[[TopicPartition, CommittedOffset], bool]) -> None:
        for shard in self._shards:
            with shard.lock:
                if not shard.loaded:
                    continue
                gone = [
                    OffsetKey(group, partition)
                    for group, stored in shard.groups.items()
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
        tombstones = [(key, encode_key(key), b"") for key in keys]
        for chunk in _chunks(tombstones):
            self._append(shard, [NewRecord(None, encoded, now) for _, encoded, _ in chunk])
            for key, _, _ in chunk:
                _remove(shard, key)

    def _append(self, shard: _Shard, batch: list[NewRecord]) -> None:
        data = bytearray(encode_batch(batch))
        self._logs.log(shard.partition).append(data, internal=True)
        self._appended(shard.partition, len(data))

    def _load_shard(self, shard: _Shard) -> None:
        log = self._logs.log(shard.partition)
        with shard.lock:
            offset = log.start_offset
            while offset < log.end_offset:
                offset = _replay(log, offset, shard)
            shard.loaded = True


def _replay(log: Log, offset: int, shard: _Shard) -> int:
    """Take one read's worth of records into the shard; returns where to go on."""
    piece = log.read(offset, _LOAD_BYTES, at_least_one=True)
    try:
        data = memoryview(piece.read())
    finally:
        piece.close()
    for record in records(data, start_offset=offset, max_bytes=_LOAD_BYTES + len(data)):
        if record.key is None:
            continue
        try:
            key = decode_key(record.key)
            if key is None:
                continue
            if record.value is None:
                _remove(shard, key)
            else:
                shard.groups.setdefault(key.group, {})[key.partition] = decode_value(record.value)
        except CorruptMessage as e:
            _log.warning("offset %d is skipped: %s", record.offset, e)
    return max((frame.next_offset for frame in frames(data, start_offset=offset)), default=log.end_offset)


def _remove(shard: _Shard, key: OffsetKey) -> None:
    stored = shard.groups.get(key.group)
    if stored is not None:
        stored.pop(key.partition, None)
        if not stored:
            del shard.groups[key.group]


def _chunks(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """The entries in pieces that fit a batch each."""
    chunk: list[_Entry] = []
    size = 0
    for entry in entries:
        added = len(entry[1]) + len(entry[2]) + _RECORD_OVERHEAD
        if chunk and size + added > _BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += added
    if chunk:
        yield chunk
