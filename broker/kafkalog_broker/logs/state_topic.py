"""A compacted topic with a coordinator's state: read once, then written, and served from memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Protocol, TypeVar

from kafkalog_broker.disk.data_directory import PassingError
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, KafkaError, ServerError, TopicAlreadyExists
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import (
    MAGIC,
    ControlType,
    control_type,
    decode_records,
    encode_batch,
    magic_at,
    read_header,
    record_block,
    verify_crc,
)
from pyspark_kafkalog.formats.message_set import ENTRIES, frames
from pyspark_kafkalog.formats.record import read_fields
from pyspark_kafkalog.types import NewRecord, TopicPartition

_LOAD_BYTES = 1 << 20
_BATCH_BYTES = 512 << 10
"""Records above this are split into several batches, each below the default ``max.message.bytes``."""

_RECORD_OVERHEAD = 32
"""Upper bound of a record's bytes besides key and value."""

_log = logging.getLogger(__name__)


class Placement(Protocol):
    """Which broker keeps each partition of a state topic that brokers share."""

    def count(self) -> int | None:
        """Number of partitions: 0 if the cluster has no such topic, None if not known yet."""

    def refusal(self, number: int) -> KafkaError | None:
        """The error if this broker does not keep a partition's state now, lost it, or is about to load it."""


Appended = Callable[[TopicPartition, int], None]
"""Called with each append and its size in bytes, to wake up fetches of the topic."""

LastValues = dict[bytes, tuple[int, "bytes | None"]]
"""Offset and value of each key's last record; None for a deleted key."""

S = TypeVar("S")


@dataclass(slots=True)
class Stored:
    """Content of one partition. Values of open transactions are in ``open`` by producer id, not in ``last``;
    a later commit marker applies those that are newer than ``last`` (`settle`), an abort marker drops them.
    """

    last: LastValues = field(default_factory=dict)
    open: dict[int, LastValues] = field(default_factory=dict)

    def values(self) -> Iterator[tuple[int, bytes, bytes]]:
        for key, (offset, value) in self.last.items():
            if value is not None:
                yield offset, key, value

    def settle(self, producer_id: int, *, committed: bool) -> None:
        for key, found in self.open.pop(producer_id, {}).items():
            if committed and found[0] > self.last.get(key, (-1, None))[0]:
                self.last[key] = found


@dataclass(eq=False)
class Shard(Generic[S]):
    """*Thread-safe: ``lock`` guards all.* It is held over append and state change, to keep log order."""

    partition: TopicPartition
    state: S
    placement: Placement | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    loaded: bool = False
    begun: bool = False
    given_up: bool = False

    def refusal(self) -> KafkaError | None:
        """Why this broker does not keep the state, as `Placement.refusal`; may change at any time."""
        if self.given_up:
            return ServerError(ErrorCode.NOT_COORDINATOR, f"{self.partition} was another broker's meanwhile")
        return None if self.placement is None else self.placement.refusal(self.partition.partition)

    @property
    def elsewhere(self) -> bool:
        refusal = self.refusal()
        return refusal is not None and refusal.code is ErrorCode.NOT_COORDINATOR

    def check_loaded(self) -> None:
        """Raise `CoordinatorLoading` until loaded, or as `refusal`. Caller holds the lock."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        if not self.loaded:
            raise CoordinatorLoading(f"{self.partition} is still being loaded")


@dataclass(eq=False)
class StateTopic(Generic[S]):
    """*Thread-safe.* ``shards`` is replaced under ``_opening``; ``_reading`` serializes loading. ``new``
    makes a partition's empty state, ``build`` fills it from storage, without the lock. ``create`` creates the
    topic on first use. Call `look`, then `load` when ``placement`` changes.
    """

    logs: LogManager
    name: str
    _: KW_ONLY
    new: Callable[[TopicPartition], S]
    build: Callable[[Shard[S], Stored], None]
    create: Callable[[], object]
    appended: Appended
    placement: Placement | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock, init=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, init=False)
    shards: tuple[Shard[S], ...] = field(default=(), init=False)
    """By partition; empty until the topic is created or found."""
    put_off: bool = field(default=False, init=False)
    """Whether the last `load` could not read a partition that a later one may."""

    def look(self) -> list[Shard[S]]:
        """Check whether the topic exists; returns the shards that are no longer ours, to be dropped."""
        self._find()
        with self._opening:
            given_up = [shard for shard in self.shards if shard.begun and shard.refusal() is not None]
            for shard in given_up:
                with shard.lock:
                    shard.given_up = True
            if given_up:
                self.shards = tuple(
                    self._shard(shard.partition.partition) if shard.given_up else shard
                    for shard in self.shards
                )
        return given_up

    def load(self) -> list[Shard[S]]:
        """Load our unloaded partitions; returns them, once loaded or failed."""
        with self._reading:
            found = []
            self.put_off = False
            for shard in self.shards:
                with shard.lock:
                    if shard.begun or shard.refusal() is not None:
                        continue
                    shard.begun = True
                self._load(shard)
                found.append(shard)
        return found

    def check_found(self) -> None:
        """Raise `CoordinatorLoading` while it is unknown whether the cluster has the topic."""
        self._find()
        if not self.shards and self.placement is not None and self.placement.count() is None:
            raise CoordinatorLoading(f"this broker does not know yet who owns the partitions of {self.name}")

    def open(self) -> None:
        """Create the topic if missing, possibly by asking ZooKeeper. Raises `KafkaError`."""
        self.check_found()
        if not self.shards:
            try:
                self.create()
            except TopicAlreadyExists:
                self._find()
            else:
                self._find()
                self.load()  # it is empty: no need to wait for the loading thread
        if not self.shards:
            raise CoordinatorLoading(f"{self.name} is being made")

    def shard_of(self, key: str) -> Shard[S]:
        """The shard of a group or transactional id. A single broker creates the topic if missing; in a
        cluster only `open` does, as request threads must not wait for ZooKeeper.
        """
        if not self.shards:
            if self.placement is None:
                self.open()
            self.check_found()
        if not self.shards:
            raise ServerError(ErrorCode.NOT_COORDINATOR, f"there is no {self.name} yet")
        return self.shards[partition_for(key, len(self.shards))]

    def append(
        self, shard: Shard[S], records: Sequence[NewRecord], producer: tuple[int, int] | None = None
    ) -> int:
        """Append all or none, as ``producer`` (id, epoch); returns the first offset. The caller locks."""
        return self.append_encoded(shard, encode_records(records, producer))

    def append_encoded(self, shard: Shard[S], data: bytearray) -> int:
        """`append` the result of `encode_records`, which is modified."""
        shard.check_loaded()
        log = self.logs.log(shard.partition)
        if not data:
            return log.end_offset
        result = log.append(data, internal=True)
        self.appended(shard.partition, len(data))
        return result.base_offset

    def end_transaction(self, shard: Shard[S], producer_id: int, epoch: int, *, commit: bool) -> int:
        """Append a transaction marker; returns its size. Caller holds the lock. Raises as `append`."""
        shard.check_loaded()
        return self.logs.log(shard.partition).end_transaction(producer_id, epoch, commit=commit)

    def _load(self, shard: Shard[S]) -> None:
        try:
            self.build(shard, read_stored(self.logs.log(shard.partition)))
            with shard.lock:
                shard.loaded = True
        except PassingError:
            with shard.lock:
                shard.begun = False
            self.put_off = True
        except KafkaError as e:
            _log.error("%s cannot be loaded, what it keeps stays unavailable: %s", shard.partition, e)
        except Exception:
            _log.exception("%s cannot be loaded, what it keeps stays unavailable", shard.partition)

    def _find(self) -> None:
        if self.shards:
            return
        if self.placement is not None:
            count = self.placement.count() or 0
        else:
            topic = self.logs.topics.get(self.name)
            count = 0 if topic is None else len(topic.partitions)
        with self._opening:
            if not self.shards:
                self.shards = tuple(self._shard(number) for number in range(count))

    def _shard(self, partition: int) -> Shard[S]:
        where = TopicPartition(self.name, partition)
        return Shard(where, self.new(where), self.placement)


def partition_for(key: str, partition_count: int) -> int:
    """Partition of a group or transactional id: Java's ``hashCode`` modulo the count."""
    value = 0
    utf16 = key.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(utf16), 2):
        value = (value * 31 + (utf16[i] << 8) + utf16[i + 1]) & 0xFFFFFFFF
    if value == 0x80000000:  # Java cannot negate its smallest int; Kafka uses 0
        return 0
    return (value if value < 0x80000000 else 0x100000000 - value) % partition_count


def encode_records(records: Sequence[NewRecord], producer: tuple[int, int] | None = None) -> bytearray:
    data = bytearray()
    (producer_id, epoch), sequence = producer or (-1, -1), -1 if producer is None else 0
    for batch in _batches(records):
        data += encode_batch(
            batch, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            transactional=producer is not None,
        )  # fmt: skip
    return data


def _batches(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        added = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        if batch and size + added > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += added
    if batch:
        yield batch


def read_stored(log: Log) -> Stored:
    stored, offset = Stored(), log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, _LOAD_BYTES, at_least_one=True)
        try:
            data = memoryview(piece.read())
        finally:
            piece.close()
        next_offset = log.end_offset
        for frame in frames(data, start_offset=offset):
            _take(data, frame, stored)
            next_offset = frame.next_offset
        offset = next_offset
    return stored


def _take(data: memoryview, frame: Frame, stored: Stored) -> None:
    largest, into, position = _LOAD_BYTES + len(data), stored.last, frame.position
    if magic_at(data, position) == MAGIC:
        header = read_header(data, position)
        if header.is_control:
            for marker in decode_records(data, position, header, largest):
                stored.settle(header.producer_id, committed=control_type(marker) is ControlType.COMMIT)
            return
        if header.is_transactional:
            into = stored.open.setdefault(header.producer_id, {})
        # Most batches are one commit: skipping record objects makes loading a third faster.
        verify_crc(data, position, header)
        block = bytes(record_block(data, position, header, largest))
        for _, delta, key, value, _ in read_fields(block, header.record_count):
            if key is not None:
                into[key] = header.base_offset + (delta >> 1), value
        return
    for record in ENTRIES.records(data, frame, max_bytes=largest):
        if record.key is not None:
            into[record.key] = record.offset, record.value
