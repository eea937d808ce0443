"""Decides what stays of each entry of a compacted log: `BatchFilter`. Pure.

The rules are Kafka's (3.9 ``Cleaner``, ``CleanedTransactionMetadata``, ``MemoryRecords.filterTo``):

* A record stays if it is beyond the map, or the last of its key and not an expired tombstone.
* A v2 tombstone expires at its batch's delete horizon, which the first cleaning to see it stores as base
  timestamp. A v0 or v1 tombstone expires by its file's time.
* Data of an aborted transaction goes at once. A marker gets a delete horizon in the first cleaning that finds
  no batch of its transaction, and goes after that.
* A live producer's last batch and the last cleaned batch stay, if need be without records.

A changed batch keeps its offsets, sequences, epochs, codec and timestamp type.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import md5

from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.family import NewestBatch
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import read_uvarlong, varint_bytes, varlong_bytes
from pyspark_kafkalog.formats.batch import (
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MARKER_HEAD_BYTES,
    BatchHeader,
    ControlType,
    magic_at,
    marker_type,
    read_header,
    record_block,
    seal_batch,
    verify_crc,
)
from pyspark_kafkalog.formats.compression import compress
from pyspark_kafkalog.formats.legacy import Message, encode_set, messages, read_entry
from pyspark_kafkalog.formats.message_set import MAX_BATCH_BYTES
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord

_HALF = 1 << 63
"""Time differences wrap around at 64 bits, for readers too."""


BYTES_PER_KEY = 160
"""Measured memory per key in the map: its bytes or digest, its offset, and its share of the table."""

LONGEST_PLAIN = 15
"""Longer keys are stored as 16-byte MD5 digests (Kafka digests all), which no plain key can equal."""

digest = partial(md5, usedforsecurity=False)

_LONGER = 2 * (LONGEST_PLAIN + 1)
"""Zigzag-coded length from which keys are digested."""


class KeyOffsets:
    """*Not thread-safe: one cleaning.* Last offset of each key below ``end_offset``; fill in log order."""

    __slots__ = ("_most", "end_offset", "newest")

    def __init__(self, memory_bytes: int, start_offset: int) -> None:
        """``memory_bytes``: limit of the map; one batch always fits."""
        self._most = max(1, memory_bytes // BYTES_PER_KEY)
        self.end_offset = start_offset
        """Keys from this offset on are unknown."""
        self.newest: dict[bytes, int] = {}
        """Offset by `name_of` the key."""

    def has_room(self, record_count: int) -> bool:
        return not self.newest or len(self.newest) + record_count <= self._most

    def add_records(self, block: bytes, count: int, base_offset: int, start_offset: int) -> None:
        newest, pos = self.newest, 0
        if count * MIN_RECORD_BYTES > len(block):
            raise CorruptMessage(f"{count} records cannot be in {len(block)} bytes")
        try:
            for _ in range(count):
                if (size := block[pos]) < 128:
                    pos += 1
                elif (high := block[pos + 1]) < 128:
                    size += high - 1 << 7
                    pos += 2
                else:
                    size, pos = read_uvarlong(block, pos)
                end = pos + (size >> 1)
                pos += 1  # attributes, unused
                if block[pos] < 128:
                    pos += 1
                elif block[pos + 1] < 128:
                    pos += 2
                else:
                    pos = read_uvarlong(block, pos)[1]
                if (delta := block[pos]) < 128:
                    pos += 1
                elif (high := block[pos + 1]) < 128:
                    delta += high - 1 << 7
                    pos += 2
                else:
                    delta, pos = read_uvarlong(block, pos)
                if (length := block[pos]) < 128:
                    pos += 1
                else:
                    length, pos = read_uvarlong(block, pos)
                if not length & 1 and (offset := base_offset + (delta >> 1)) >= start_offset:
                    key = block[pos : pos + (length >> 1)]
                    newest[key if length < _LONGER else digest(key).digest()] = offset
                pos = end
        except IndexError:
            raise CorruptMessage(f"the batch at offset {base_offset}: its records are cut short") from None
        if pos != len(block):
            raise CorruptMessage(f"the batch at offset {base_offset}: the lengths of its records are wrong")

    def add(self, key: bytes, offset: int) -> None:
        self.newest[name_of(key)] = offset

    def newest_of(self, key: bytes) -> int:
        return self.newest.get(name_of(key), -1)


def name_of(key: bytes) -> bytes:
    return key if len(key) <= LONGEST_PLAIN else digest(key).digest()


class AbortedRanges:
    """*Thread-safe: immutable.* Offset ranges of aborted transactions, by producer."""

    def __init__(self, rows: Iterable[AbortedTransaction]) -> None:
        self._rows: dict[int, list[AbortedTransaction]] = {}
        for row in sorted(rows, key=lambda row: row.first_offset):
            self._rows.setdefault(row.producer_id, []).append(row)

    def of(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        rows = self._rows.get(producer_id)
        if not rows:
            return None
        found = bisect_right(rows, offset, key=lambda row: row.first_offset) - 1
        return rows[found] if found >= 0 and offset <= rows[found].marker_offset else None


@dataclass(slots=True)
class BatchFilter:
    """*Not thread-safe: one cleaning.* Takes entries from the log's first on. ``keep_legacy``: v0 and v1
    tombstones of this segment have not expired. ``aborted_rows``: those of markers that stay.
    """

    newest: KeyOffsets
    producers: Mapping[int, NewestBatch]
    aborted: AbortedRanges
    now_ms: int
    delete_retention_ms: int
    keep_legacy: bool = True
    aborted_rows: list[AbortedTransaction] = field(default_factory=list)
    _in_transaction: set[int] = field(default_factory=set)
    """Producers with a transaction whose marker has not come yet."""

    def clean(self, data: bytes) -> bytes | None:
        """What stays of entry ``data``, or None. Raises `CorruptMessage`; `MessageTooLarge`: decompressed."""
        if magic_at(data, 0) != MAGIC:
            return self._clean_set(data)
        header = read_header(data)
        verify_crc(data, 0, header)
        kept = self._clean_marker(header, data) if header.is_control else self._clean_data(header, data)
        if kept is None and self._must_stay(header):
            return _emptied(header)
        return kept

    def takes_keys_of(self, header: BatchHeader) -> bool:
        return not header.is_control and not (
            header.is_transactional and self.aborted.of(header.producer_id, header.base_offset)
        )

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self.newest.end_offset:
            return True
        newest = self.producers.get(header.producer_id)
        if newest is None:
            return False
        if newest.last_offset is None:
            return header.is_control and header.producer_epoch == newest.epoch
        return header.last_offset == newest.last_offset

    def _clean_marker(self, header: BatchHeader, data: bytes) -> bytes | None:
        if not header.record_count:
            return None
        kind = marker_type(data[:MARKER_HEAD_BYTES])
        if kind is ControlType.UNKNOWN:
            return data
        if header.producer_id in self._in_transaction:
            self._in_transaction.discard(header.producer_id)
            row = self.aborted.of(header.producer_id, header.base_offset)
            if row is not None and row.marker_offset == header.base_offset:
                self.aborted_rows.append(row)
            return data
        if not header.has_delete_horizon:
            return self._with_horizon(header, data[HEADER_SIZE:], header.record_count)
        return None if header.base_timestamp <= self.now_ms else data

    def _clean_data(self, header: BatchHeader, data: bytes) -> bytes | None:
        if header.is_transactional:
            self._in_transaction.add(header.producer_id)
        if not header.record_count or not self.takes_keys_of(header):
            return None
        block = bytes(record_block(data, 0, header, MAX_BATCH_BYTES))
        tombstones_stay = not header.has_delete_horizon or self.now_ms < header.base_timestamp
        newest, end_offset = self.newest.newest, self.newest.end_offset
        parts, begun, end, count, tombstones = [], -1, 0, 0, False
        newest_time: int | None = None
        walk = walk_records(block, header.record_count, header.base_offset)
        for start, _, time, offset, key_at, after in walk:
            end = after
            if (length := block[key_at]) < 128:
                pos = key_at + 1
            else:
                length, pos = read_uvarlong(block, key_at)
            if not length & 1:
                key = block[pos : (pos := pos + (length >> 1))]
                is_tombstone = bool(block[pos] & 1)
                stays = offset >= end_offset or (
                    offset >= newest.get(key if length < _LONGER else digest(key).digest(), -1)
                    and (tombstones_stay or not is_tombstone)
                )
            else:
                is_tombstone = bool(block[pos] & 1)
                stays = offset >= end_offset
            if not stays:
                if begun >= 0:
                    parts.append(block[begun:start])
                    begun = -1
                continue
            tombstones = tombstones or is_tombstone
            count += 1
            if begun < 0:
                begun = start
            delta = time >> 1 ^ -(time & 1)
            if newest_time is None or delta > newest_time:
                newest_time = delta
        if newest_time is None:
            return None
        if begun >= 0:
            parts.append(block[begun:end])
        sets_horizon = tombstones and not header.has_delete_horizon
        if count == header.record_count and not sets_horizon:
            return data
        if header.attributes & LOG_APPEND_TIME_BIT:
            newest_time = header.max_timestamp
        else:
            newest_time += header.base_timestamp
        kept = b"".join(parts)
        if sets_horizon:
            return self._with_horizon(header, kept, count, newest_time)
        return _sealed(header, kept, count, newest_time)

    def _with_horizon(
        self, header: BatchHeader, block: bytes, count: int, newest_time: int | None = None
    ) -> bytes:
        """Encode the batch with a delete horizon as base timestamp; all time deltas change with it."""
        horizon_ms = self.now_ms + self.delete_retention_ms
        shift = header.base_timestamp - horizon_ms
        made: list[bytes] = []
        for _, at, time, _, _, end in walk_records(block, count, header.base_offset):
            # The record's length changes with its time delta.
            fields = varlong_bytes(((time >> 1 ^ -(time & 1)) + shift + _HALF) % (2 * _HALF) - _HALF)
            delta_at = _after_varint(block, at)
            body = b"".join((block[at - 1 : at], fields, block[delta_at:end]))
            made += (varint_bytes(len(body)), body)
        return _sealed(
            header, b"".join(made), count, header.max_timestamp if newest_time is None else newest_time,
            base_timestamp=horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT,
        )  # fmt: skip

    def _clean_set(self, data: bytes) -> bytes | None:
        header = read_entry(data)
        found = list(messages(data, max_bytes=MAX_BATCH_BYTES))
        kept = [message for message in found if self._stays(message)]
        if len(kept) == len(found):
            return data
        return (
            encode_set(
                [
                    NewRecord(None if m.value is None else bytes(m.value), bytes(m.key or b""), m.timestamp)
                    for m in kept
                ],
                magic=header.magic,
                codec=header.codec,
                offsets=[message.offset for message in kept],
                timestamp_type=header.timestamp_type,
            )
            or None
        )

    def _stays(self, message: Message) -> bool:
        if message.offset >= self.newest.end_offset:
            return True
        return (
            message.key is not None
            and message.offset >= self.newest.newest_of(bytes(message.key))
            and (message.value is not None or self.keep_legacy)
        )


def _sealed(
    header: BatchHeader,
    block: bytes,
    count: int,
    newest_time: int,
    *,
    base_timestamp: int | None = None,
    attributes: int | None = None,
) -> bytes:
    codec = header.codec
    return seal_batch(
        compress(codec, block) if codec and count else block,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes if attributes is None else attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp if base_timestamp is None else base_timestamp,
        max_timestamp=newest_time,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        record_count=count,
    )


def _emptied(header: BatchHeader) -> bytes:
    attributes = header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT)
    return _sealed(header, b"", 0, header.max_timestamp, base_timestamp=NO_TIMESTAMP, attributes=attributes)


def _after_varint(block: bytes, pos: int) -> int:
    while block[pos] >= 128:
        pos += 1
    return pos + 1


def walk_records(block: bytes, count: int, base_offset: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Start, position of the time delta, time delta, offset, position of the key length, and end of each."""
    pos = 0
    try:
        for _ in range(count):
            start = pos
            if (size := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                size += high - 1 << 7
                pos += 2
            else:
                size, pos = read_uvarlong(block, pos)
            end = pos + (size >> 1)
            pos = at = pos + 1
            if (time := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                time += high - 1 << 7
                pos += 2
            else:
                time, pos = read_uvarlong(block, pos)
            if (delta := block[pos]) < 128:
                pos += 1
            elif (high := block[pos + 1]) < 128:
                delta += high - 1 << 7
                pos += 2
            else:
                delta, pos = read_uvarlong(block, pos)
            if end > len(block):
                break
            yield start, at, time, base_offset + (delta >> 1), pos, end
            pos = end
    except IndexError:
        pos = -1
    if pos != len(block):
        raise CorruptMessage(f"the batch at offset {base_offset}: the lengths of its records are wrong")
