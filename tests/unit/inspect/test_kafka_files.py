"""Kafka's files beside a segment, byte for byte. What Kafka's own tools make of them: tests/peers."""

from __future__ import annotations

import struct
from uuid import UUID

from kafkalog_broker.inspect.export import (
    KafkaIndexes,
    add_epoch,
    checkpoint,
    kafka_directory_name,
    kafka_segment_name,
    partition_metadata,
)
from kafkalog_broker.log.scan import FoundBatch
from pyspark_kafkalog.formats.batch import BatchHeader, encode_batch, read_header
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, TopicPartition


def headers(count: int, size: int, times: list[int], base: int = 0, epoch: int = 0) -> list[BatchHeader]:
    return [
        read_header(
            encode_batch([NewRecord(b"x" * size, None, times[i])], base_offset=base + i, leader_epoch=epoch)
        )
        for i in range(count)
    ]


def test_names_are_kafkas() -> None:
    assert kafka_directory_name(TopicPartition("my_topic", 3)) == "my_topic-3"
    assert kafka_segment_name(42) == "00000000000000000042.log"
    assert kafka_segment_name(2**63 - 1, ".index") == "9223372036854775807.index".rjust(26, "0")


def test_a_row_comes_after_more_than_the_interval() -> None:
    indexes = KafkaIndexes(1000)
    position = 0
    for header in headers(9, 2000 - 70, [10, 30, 20, 40, 40, 50, 5, 5, 60], base=1000):
        assert header.size == 2000
        indexes.add(FoundBatch(position, header, header.crc))
        position += 2000
    offsets, times = indexes.finish()
    assert list(struct.iter_unpack(">ii", offsets)) == [(3, 6000), (6, 12000)]
    assert list(struct.iter_unpack(">qi", times)) == [(40, 3), (50, 5), (60, 8)]


def test_records_without_a_time_make_no_row() -> None:
    indexes = KafkaIndexes(0)
    for header in headers(3, 5000, [NO_TIMESTAMP] * 3):
        indexes.add(FoundBatch(header.base_offset * 5100, header, header.crc))
    offsets, times = indexes.finish()
    assert len(offsets) == 16
    assert times == b""


def test_each_epoch_begins_at_its_first_offset() -> None:
    epochs: list[tuple[int, int]] = []
    assert checkpoint(epochs) == b"0\n0\n"
    for epoch, base in ((-1, 5), (0, 7), (0, 9), (3, 11), (3, 12), (4, 20)):
        (header,) = headers(1, 1, [0], base=base, epoch=epoch)
        add_epoch(epochs, header)
    assert checkpoint(epochs) == b"0\n3\n0 7\n3 11\n4 20\n"


def test_metadata_names_the_topic_as_kafka_writes_ids() -> None:
    assert partition_metadata(UUID(int=0x10)) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEA\n"
