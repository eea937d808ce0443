"""Transactions by raw requests: what a test wants to send, whether it is right or not."""

from __future__ import annotations

import time

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pyspark_kafkalog.types import NewRecord
from tests.support.protocol.raw_client import RawClient


class RawTransactions:
    """*Not thread-safe.* A transactional id at a connection; ``producer`` is what its requests name."""

    def __init__(self, client: RawClient, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    def initialize(self, known: tuple[int, int] = (-1, -1), version: int | None = None) -> ErrorCode:
        """Take the id over; on success its producer is this one."""
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms, *known)
        answer = self.client.ask(request, version)
        if answer.error_code == ErrorCode.NONE:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        code: ErrorCode = answer.error_code
        return code

    def begun(self, topic: str, *partitions: int) -> RawTransactions:
        """Initialized, and with these partitions in its transaction."""
        while (code := self.initialize()) == ErrorCode.CONCURRENT_TRANSACTIONS:
            pass
        assert code == ErrorCode.NONE
        assert self.add(topic, *(partitions or (0,))) == ErrorCode.NONE
        return self

    def add(self, topic: str, *partitions: int, version: int = 3) -> ErrorCode:
        """The code of the first partition; all of them must be equal."""
        topics = (AddPartitionsToTxnTopic(topic, partitions),)
        request = AddPartitionsToTxnRequest((), self.transactional_id, *self.producer, topics)
        (result,) = self.client.ask(request, version).results_by_topic_v3_and_below
        codes = {each.partition_error_code for each in result.results_by_partition}
        (code,) = codes
        return ErrorCode(code)

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int = 11) -> ErrorCode:
        """Produce one transactional batch."""
        return self.produced(topic, *values, partition=partition, version=version).error_code

    def produced(
        self, topic: str, *values: bytes, partition: int = 0, version: int = 11
    ) -> PartitionProduceResponse:
        """As `send`; the whole answer."""
        sequence = self.sequences.get((topic, partition), 0)
        data = encode_batch(
            [NewRecord(value, None, time.time_ns() // 1_000_000) for value in values],
            producer_id=self.producer[0], producer_epoch=self.producer[1], base_sequence=sequence,
            transactional=True,
        )  # fmt: skip
        topics = (TopicProduceData(topic, (PartitionProduceData(partition, memoryview(data)),)),)
        request = ProduceRequest(self.transactional_id, -1, 1000, topics)
        found: PartitionProduceResponse = (
            self.client.ask(request, version).responses[0].partition_responses[0]
        )
        if found.error_code == ErrorCode.NONE:
            self.sequences[topic, partition] = sequence + len(values)
        return found

    def add_offsets(self, group: str) -> ErrorCode:
        request = AddOffsetsToTxnRequest(self.transactional_id, *self.producer, group)
        code: ErrorCode = self.client.ask(request).error_code
        return code

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 4) -> ErrorCode:
        """Store an offset for partition 0 with the transaction."""
        wanted = (TxnOffsetCommitRequestTopic(topic, (TxnOffsetCommitRequestPartition(0, offset),)),)
        request = TxnOffsetCommitRequest(self.transactional_id, group, *self.producer, topics=wanted)
        code: ErrorCode = self.client.ask(request, version).topics[0].partitions[0].error_code
        return code

    def end(self, *, commit: bool = True, version: int = 4) -> ErrorCode:
        """From version 5 on its producer is then the one of the answer."""
        answer = self.client.ask(EndTxnRequest(self.transactional_id, *self.producer, commit), version)
        if version >= 5 and answer.error_code == ErrorCode.NONE:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        code: ErrorCode = answer.error_code
        return code


def stored_offset(client: RawClient, group: str, topic: str, *, stable: bool = True) -> tuple[ErrorCode, int]:
    """What the group has stored for partition 0."""
    wanted = OffsetFetchRequestGroup(group, topics=(OffsetFetchRequestTopics(topic, (0,)),))
    answer = client.ask(OffsetFetchRequest(groups=(wanted,), require_stable=stable), 8)
    (found,) = answer.groups[0].topics[0].partitions
    return found.error_code, found.committed_offset
