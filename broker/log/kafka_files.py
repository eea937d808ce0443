"""Files as Apache Kafka has them beside a segment: what it reads of a log that it did not write.

Segment ``<base offset, 20 digits>.log``. ``.index``: rows ``relative offset:4 position:4`` of a batch, by its
last offset. ``.timeindex``: rows ``timestamp:8 relative offset:4``, the largest time so far and the last
offset of the first batch that has it. ``leader-epoch-checkpoint``: version, count, rows ``epoch offset``.
``partition.metadata``: the topic's id. Source: Kafka 3.9, ``OffsetIndex``, ``TimeIndex``,
``LogSegment.append``, ``LeaderEpochCheckpointFile``, ``PartitionMetadataFile``.
"""

from __future__ import annotations

import struct
from uuid import UUID

from broker.log.salvage import Found
from pyspark_kafkalog.formats.batch import BatchHeader
from pyspark_kafkalog.types import NO_TIMESTAMP, TopicPartition, encode_id

LEADER_EPOCHS = "leader-epoch-checkpoint"

_INTERVAL_BYTES = 4096
"""Kafka's default of ``index.interval.bytes``."""

_OFFSET_ROW = struct.Struct(">ii")
_TIME_ROW = struct.Struct(">qi")


def kafka_directory_name(partition: TopicPartition) -> str:
    """``my_topic-0``: where Kafka has a partition's files."""
    return f"{partition.topic}-{partition.partition}"


def kafka_segment_name(base_offset: int, suffix: str = ".log") -> str:
    """The name of a segment's file, or of the one with ``suffix`` beside it."""
    return f"{base_offset:020d}{suffix}"


def partition_metadata(topic_id: UUID) -> bytes:
    """The content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {encode_id(topic_id)}\n".encode("ascii")


class KafkaIndexes:
    """*Not thread-safe.* Both indexes of one segment, made from its entries as Kafka makes them."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets = bytearray()
        self._times = bytearray()
        self._largest = (NO_TIMESTAMP, base_offset)
        self._last_time = NO_TIMESTAMP
        self._bytes_since_row = 0

    def add(self, found: Found) -> None:
        """The next entry of the segment; its offsets are at most 2**31 - 1 above the segment's first."""
        if found.max_timestamp > self._largest[0]:
            self._largest = (found.max_timestamp, found.last_offset)
        if self._bytes_since_row > _INTERVAL_BYTES:
            self._offsets += _OFFSET_ROW.pack(found.last_offset - self._base_offset, found.position)
            self._add_time()
            self._bytes_since_row = 0
        self._bytes_since_row += found.size

    def finish(self) -> tuple[bytes, bytes]:
        """The content of ``.index`` and of ``.timeindex``, once all batches are in."""
        self._add_time()
        return bytes(self._offsets), bytes(self._times)

    def _add_time(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time:
            self._times += _TIME_ROW.pack(timestamp, offset - self._base_offset)
            self._last_time = timestamp


class LeaderEpochs:
    """*Not thread-safe.* At which offset each leader epoch of a log begins."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int]] = []

    def add(self, header: BatchHeader) -> None:
        """The next batch of the log."""
        epoch = header.partition_leader_epoch
        if epoch >= 0 and (not self._rows or epoch > self._rows[-1][0]):
            self._rows.append((epoch, header.base_offset))

    def content(self) -> bytes:
        """The content of ``leader-epoch-checkpoint``."""
        lines = ["0", str(len(self._rows)), *(f"{epoch} {offset}" for epoch, offset in self._rows)]
        return ("\n".join(lines) + "\n").encode("ascii")
