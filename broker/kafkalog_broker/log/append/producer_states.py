"""A log's idempotent producers and their transactions; loaded on first use, saved when a segment is full.

The rules are Kafka's (KIP-98, KIP-360). A batch must follow its producer's last one; a repeat of one of the
last five gets its old offsets; an older epoch is refused; a newer one starts at sequence 0. An unknown
producer may start anywhere. The first transactional batch opens a transaction; its marker closes it and sets
the producer's epoch. Producers with an open transaction are never forgotten.

``producers.snapshot``: version:1 = 1, offset:8, crc32c:4 of all other bytes, then `ProducerState.dump`. If it
is missing or damaged the log is read instead.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.family import CheckedBatch, KnownProducer, NewestBatch, Producers
from pyspark_kafkalog.errors import CorruptMessage, InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from pyspark_kafkalog.formats.base import Frame, crc32c
from pyspark_kafkalog.formats.batch import MAGIC, BatchHeader, ControlType, magic_at, marker_type, read_header

REMEMBERED_BATCHES = 5
"""A producer may have five batches in flight, so a retry is one of the last five."""

MAX_SEQUENCE = (1 << 31) - 1

_NONE_OPEN = -1
_SNAPSHOT_VERSION = 2
_SNAPSHOT_HEAD = struct.Struct(">bI")
_SNAPSHOT_PRODUCER = struct.Struct(">qhqBq")
_SNAPSHOT_BATCH = struct.Struct(">iiqq")


class _Batch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True, eq=False)
class _Producer:
    """*Not thread-safe: owned by its `ProducerState`.* Epoch and last batches of a producer id."""

    epoch: int
    last_timestamp_ms: int
    batches: deque[_Batch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class ProducerState:
    """*Not thread-safe: under its log's lock.* Producers of one partition."""

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        """First offset of each open transaction by producer id, in offset order."""

    @property
    def first_open(self) -> int | None:
        return next(iter(self._open.values()), None)

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> tuple[int, int] | None:
        """Offsets of the earlier batch that this one repeats; None if it may be appended."""
        if header.producer_id < 0 or header.is_control:
            return None
        known = self._producers.get(header.producer_id)
        if header.base_sequence < 0:
            raise OutOfOrderSequence(f"producer {header.producer_id} sent sequence {header.base_sequence}")
        if known is None:
            return None
        self.check_epoch(header.producer_id, header.producer_epoch)
        if header.producer_id in self._open and not header.is_transactional:
            raise InvalidTxnState(
                f"producer {header.producer_id} sent a batch outside the transaction that it has open"
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence "
                    f"{header.base_sequence} instead of 0"
                )
            return None
        last_sequence = header.last_sequence
        for batch in known.batches:
            if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch.base_offset, batch.last_offset
        # After a marker that raised the epoch a producer has no batches and also starts at 0.
        expected = next_sequence(known.batches[-1].last_sequence) if known.batches else 0
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} epoch {known.epoch}: expected sequence {expected}, "
                f"got {header.base_sequence}"
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id}: epoch {known.epoch}; the batch has {epoch}")

    def record(self, header: BatchHeader, base_offset: int, last_offset: int, timestamp: int) -> None:
        """Remember an appended data batch; unchecked, for recovery. ``timestamp`` in ms is for expiry."""
        if header.producer_id < 0 or header.is_control:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, timestamp)
        producer.last_timestamp_ms = max(producer.last_timestamp_ms, timestamp)
        producer.batches.append(_Batch(header.base_sequence, header.last_sequence, base_offset, last_offset))
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)

    def end(
        self, header: BatchHeader, kind: ControlType, offset: int, timestamp: int
    ) -> AbortedTransaction | None:
        """Close the transaction that the marker at ``offset`` ends, if any; returns it if aborted."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch < header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, timestamp)
        producer.last_timestamp_ms = max(producer.last_timestamp_ms, timestamp)
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is None or kind is not ControlType.ABORT:
            return None
        first_open = self.first_open
        stable = offset + 1 if first_open is None else first_open
        return AbortedTransaction(header.producer_id, first_offset, offset, stable)

    def learn(self, header: BatchHeader, head: bytes, timestamp: int) -> AbortedTransaction | None:
        """Learn from a stored batch, unchecked; returns what it aborts. ``head``: a marker's first bytes."""
        if header.producer_id >= 0 and not header.is_control:
            self.record(header, header.base_offset, header.last_offset, timestamp)
        elif header.producer_id >= 0 and header.record_count:
            kind = marker_type(head)
            if kind is not ControlType.UNKNOWN:
                return self.end(header, kind, header.base_offset, timestamp)
        return None

    def known(self) -> list[KnownProducer]:
        return [
            KnownProducer(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else -1,
                producer.last_timestamp_ms,
                self._open.get(producer_id, _NONE_OPEN),
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def newest(self) -> dict[int, NewestBatch]:
        return {
            producer_id: NewestBatch(
                producer.batches[-1].last_offset if producer.batches else None, producer.epoch
            )
            for producer_id, producer in self._producers.items()
        }

    def clear(self) -> None:
        self._producers.clear()
        self._open.clear()

    def forget_before(self, now_ms: int) -> None:
        """Forget producers silent for ``expiration_ms`` or longer, unless they have a transaction open."""
        limit = now_ms - self._expiration_ms
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_timestamp_ms <= limit and producer_id not in self._open
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def dump(self) -> bytes:
        """The state for `restore`: ``version:1 count:4``, then each producer; empty without producers.

        Producer: ``id:8 epoch:2 last_timestamp_ms:8 batches:1 open:8`` and its batches, oldest first:
        ``base_sequence:4 last_sequence:4 base_offset:8 last_offset:8``. ``open``: start of its transaction,
        or -1.
        """
        if not self._producers:
            return b""
        out = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, len(self._producers)))
        for producer_id, producer in self._producers.items():
            out += _SNAPSHOT_PRODUCER.pack(
                producer_id, producer.epoch, producer.last_timestamp_ms, len(producer.batches),
                self._open.get(producer_id, _NONE_OPEN),
            )  # fmt: skip
            for batch in producer.batches:
                out += _SNAPSHOT_BATCH.pack(*batch)
        return bytes(out)

    def restore(self, data: bytes) -> None:
        """Load what `dump` wrote. Raises `CorruptMessage`, with the state then empty."""
        self.clear()
        if data:
            try:
                self._producers, self._open = _parse(data)
            except struct.error as e:
                raise CorruptMessage(f"producer snapshot of {len(data)} bytes: {e}") from e


def next_sequence(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1


def _parse(data: bytes) -> tuple[dict[int, _Producer], dict[int, int]]:
    version, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptMessage(f"producer snapshot of version {version}, not {_SNAPSHOT_VERSION}")
    producers: dict[int, _Producer] = {}
    opened: list[tuple[int, int]] = []
    pos = _SNAPSHOT_HEAD.size
    for _ in range(count):
        producer_id, epoch, timestamp, batches, first_open = _SNAPSHOT_PRODUCER.unpack_from(data, pos)
        pos += _SNAPSHOT_PRODUCER.size
        if first_open != _NONE_OPEN:
            opened.append((first_open, producer_id))
        producer = producers[producer_id] = _Producer(epoch, timestamp)
        for _ in range(batches):
            producer.batches.append(_Batch(*_SNAPSHOT_BATCH.unpack_from(data, pos)))
            pos += _SNAPSHOT_BATCH.size
    if pos != len(data):
        raise CorruptMessage(f"producer snapshot has {len(data) - pos} bytes after its end")
    return producers, {producer_id: offset for offset, producer_id in sorted(opened)}


SNAPSHOT_NAME = "producers.snapshot"

_HEAD = struct.Struct(">bq")
_CRC = struct.Struct(">I")
_VERSION = 1
_DUMP_AT = _HEAD.size + _CRC.size

_logger = logging.getLogger(__name__)


class GuardedProducers(ProducerState, Producers):
    """*Not thread-safe: the log's lock guards it.* Producer state of 0.8 and later logs."""

    def __init__(self, directory: Path, files: FileSystem, expiration_ms: int) -> None:
        super().__init__(expiration_ms)
        self.directory = directory
        self._files = files
        self.loaded = False
        self._noted: tuple[int, int] | None = None
        """Offset and checksum of the last saved snapshot."""

    def check_all(self, batches: Sequence[CheckedBatch]) -> tuple[int, int] | None:
        if batches[0].magic != MAGIC:
            return None  # v0 and v1 sets name no producer
        for batch in batches:
            if batch.header is not None and batch.header.producer_id >= 0:
                duplicate = self.check(batch.header)
                if duplicate is not None:
                    return duplicate
        return None

    def record_all(
        self, batches: Sequence[CheckedBatch], base_offset: int, now_ms: int, marker: ControlType | None
    ) -> AbortedTransaction | None:
        if batches[0].magic != MAGIC:
            return None
        if marker is not None and batches[0].header is not None:
            return self.end(batches[0].header, marker, base_offset, now_ms)
        for batch in batches:
            last_offset = base_offset + batch.offset_count - 1
            if batch.header is not None and batch.header.producer_id >= 0:
                self.record(batch.header, base_offset, last_offset, now_ms)
            base_offset = last_offset + 1
        return None

    def replay(self, heads: Iterable[tuple[Frame, bytes]], now_ms: int) -> list[AbortedTransaction]:
        aborted = []
        for _, head in heads:
            if magic_at(head, 0) != MAGIC:
                continue  # v0 and v1 sets name no producer
            ended = self.learn(read_header(head), head, now_ms)  # seen now, so that none expires
            if ended is not None:
                aborted.append(ended)
        return aborted

    def save(self, end_offset: int) -> None:
        if not self.loaded:
            return
        dump = self.dump()
        noted = (end_offset, crc32c(dump))
        if noted == self._noted:
            return
        try:
            head = _HEAD.pack(_VERSION, end_offset)
            data = head + _CRC.pack(crc32c(dump, crc32c(head))) + dump
            replace_file(self._files, self.directory / SNAPSHOT_NAME, data, durable=False)
        except OSError as e:
            _logger.warning("%s: producers could not be noted: %s", self.directory, e)
        else:
            self._noted = noted

    def load(self, end_offset: int) -> int:
        self.clear()
        try:
            data = read_file(self._files, self.directory / SNAPSHOT_NAME)
        except FileNotFoundError:
            return 0
        head, crc, dump = data[: _HEAD.size], data[_HEAD.size : _DUMP_AT], data[_DUMP_AT:]
        if len(data) < _DUMP_AT or _CRC.pack(crc32c(dump, crc32c(head))) != crc:
            return 0  # torn
        version, offset = _HEAD.unpack(head)
        if version != _VERSION or offset > end_offset:
            return 0
        try:
            self.restore(dump)
        except CorruptMessage as e:
            _logger.warning("%s: the log is replayed: %s", self.directory, e)
            return 0
        self._noted = (offset, crc32c(dump))
        return int(offset)
