"""What a broker does with produce requests, for a scripted broker: stores records, checks sequences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import decode_records, read_header, verify_crc
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pyspark_kafkalog.types import Record


@dataclass
class _Partition:
    records: list[Record] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    batch_counts: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    stored: dict[tuple[int, int, int], int] = field(default_factory=dict)


class FakeLog:
    """*Not thread-safe: one scripted broker's connections ask one after the other in these tests.*"""

    def __init__(self, max_batch_bytes: int = 1 << 30) -> None:
        self.partitions: dict[tuple[str, int], _Partition] = defaultdict(_Partition)
        self.max_batch_bytes = max_batch_bytes
        self.refused: list[ErrorCode] = []

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.partitions[topic, partition].records]

    def forget_producers(self) -> None:
        """As a broker that lost its producers' state."""
        for partition in self.partitions.values():
            partition.next_sequence.clear()
            partition.stored.clear()

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        return produce_answer(request, self._append)

    def _append(self, topic: str, index: int, data: Any) -> PartitionProduceResponse:
        partition = self.partitions[topic, index]
        header = read_header(data)
        verify_crc(data, 0, header)
        assert header.size == len(data), "one batch per partition and request"
        if len(data) > self.max_batch_bytes:
            return self._refuse(index, ErrorCode.MESSAGE_TOO_LARGE)
        base = len(partition.records)
        if header.producer_id >= 0:
            known = (header.producer_id, header.producer_epoch)
            batch = (*known, header.base_sequence)
            if batch in partition.stored:
                return PartitionProduceResponse(index=index, base_offset=partition.stored[batch])
            if header.base_sequence != partition.next_sequence.get(known, 0):
                return self._refuse(index, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            partition.next_sequence[known] = header.base_sequence + header.record_count
            partition.stored[batch] = base
        partition.records += decode_records(data, 0, header, 1 << 30)
        partition.batch_sizes.append(len(data))
        partition.batch_counts.append(header.record_count)
        partition.epochs.append((header.producer_id, header.producer_epoch))
        return PartitionProduceResponse(index=index, base_offset=base)

    def _refuse(self, index: int, code: ErrorCode) -> PartitionProduceResponse:
        self.refused.append(code)
        return PartitionProduceResponse(index=index, error_code=code, base_offset=-1)


def produce_answer(request: ProduceRequest, each: Any) -> ProduceResponse:
    """``each(topic, partition, data)`` for every batch of a request, as one answer."""
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    each(topic.name, data.index, data.records) for data in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def refusal(code: ErrorCode) -> Any:
    """A step that refuses every batch of a request."""

    def step(request: ProduceRequest) -> ProduceResponse:
        return produce_answer(
            request,
            lambda _topic, index, _data: PartitionProduceResponse(
                index=index, error_code=code, base_offset=-1, error_message=f"scripted {code.name}"
            ),
        )

    return step
