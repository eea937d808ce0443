"""A coordinator of transactions and groups for a scripted broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from pyspark_kafkalog.protocol.api.metadata import Coordinator, FindCoordinatorResponse
from pyspark_kafkalog.protocol.api.producers import InitProducerIdResponse
from pyspark_kafkalog.protocol.api.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_server import HOST


@dataclass
class Transaction:
    """What the coordinator has of one transactional id; ``state`` in Kafka's words."""

    producer_id: int
    epoch: int = -1
    state: str = "Empty"
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], tuple[int, str | None]] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)


class FakeTransactions:
    """*Not thread-safe: one scripted broker's connections ask one after the other.*"""

    def __init__(self, broker: ScriptedBroker, node_id: int = 0) -> None:
        self.ids: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str | None]] = {}
        self._broker, self._node_id = broker, node_id
        for key, answer in (
            (ApiKey.FIND_COORDINATOR, self.find),
            (ApiKey.INIT_PRODUCER_ID, self.init),
            (ApiKey.ADD_PARTITIONS_TO_TXN, self.add_partitions),
            (ApiKey.ADD_OFFSETS_TO_TXN, self.add_offsets),
            (ApiKey.TXN_OFFSET_COMMIT, self.commit_offsets),
            (ApiKey.END_TXN, self.end),
            (ApiKey.OFFSET_FETCH, self.fetch_offsets),
        ):
            broker.default(key, answer)

    def find(self, request: Any) -> FindCoordinatorResponse:
        if request.key:
            return FindCoordinatorResponse(node_id=self._node_id, host=HOST, port=self._broker.port)
        return FindCoordinatorResponse(
            coordinators=tuple(
                Coordinator(key=key, node_id=self._node_id, host=HOST, port=self._broker.port)
                for key in request.coordinator_keys
            )
        )

    def init(self, request: Any) -> InitProducerIdResponse:
        known = self.ids.setdefault(request.transactional_id, Transaction(4000 + len(self.ids)))
        if request.producer_id >= 0 and (request.producer_id, request.producer_epoch) != (
            known.producer_id,
            known.epoch,
        ):
            return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED, producer_epoch=-1)
        if known.state == "Ongoing":
            self._end(known, "abort")
        known.epoch += 1
        return InitProducerIdResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def add_partitions(self, request: Any) -> AddPartitionsToTxnResponse:
        wanted = [(t.name, p) for t in request.v3_and_below_topics for p in t.partitions]
        code, known = self._known(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        if known is not None:
            known.state = "Ongoing"
            known.partitions.update(wanted)
        return refused_partitions(request, code)

    def add_offsets(self, request: Any) -> AddOffsetsToTxnResponse:
        code, known = self._known(request.transactional_id, request.producer_id, request.producer_epoch)
        if known is not None:
            known.state = "Ongoing"
            known.groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def commit_offsets(self, request: Any) -> TxnOffsetCommitResponse:
        code, known = self._known(request.transactional_id, request.producer_id, request.producer_epoch)
        assert known is None or request.group_id in known.groups, "the group was not added"
        for topic in request.topics:
            for p in topic.partitions:
                key = (request.group_id, topic.name, p.partition_index)
                if known is not None:
                    known.offsets[key] = (p.committed_offset, p.committed_metadata)
        return refused_offsets(request, code)

    def fetch_offsets(self, request: Any) -> OffsetFetchResponse:
        """What transactions have committed."""
        return OffsetFetchResponse(
            groups=tuple(
                OffsetFetchResponseGroup(
                    group.group_id,
                    tuple(
                        OffsetFetchResponseTopics(
                            topic.name,
                            tuple(
                                OffsetFetchResponsePartitions(index, offset, metadata=text)
                                for index in topic.partition_indexes
                                for offset, text in [
                                    self.offsets.get((group.group_id, topic.name, index), (-1, ""))
                                ]
                            ),
                        )
                        for topic in group.topics
                    ),
                )
                for group in request.groups
            )
        )

    def end(self, request: Any) -> EndTxnResponse:
        code, known = self._known(request.transactional_id, request.producer_id, request.producer_epoch)
        how = "commit" if request.committed else "abort"
        if known is not None and known.state == "Ongoing":
            self._end(known, how)
        elif known is not None and known.state != how:
            code = ErrorCode.INVALID_TXN_STATE
        return EndTxnResponse(error_code=code)

    def _end(self, known: Transaction, how: str) -> None:
        known.state = how
        known.ends.append(how)
        if how == "commit":
            self.offsets |= known.offsets
        known.partitions, known.groups, known.offsets = set(), set(), {}

    def _known(self, name: str, producer_id: int, epoch: int) -> tuple[ErrorCode, Transaction | None]:
        known = self.ids.get(name)
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        return (ErrorCode.NONE, known) if known.epoch == epoch else (ErrorCode.PRODUCER_FENCED, None)


def refused_partitions(request: Any, code: ErrorCode) -> AddPartitionsToTxnResponse:
    """Each partition asked for, with this code."""
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                t.name, tuple(AddPartitionsToTxnPartitionResult(p, code) for p in t.partitions)
            )
            for t in request.v3_and_below_topics
        )
    )


def refused_offsets(request: Any, code: ErrorCode) -> TxnOffsetCommitResponse:
    """Each partition asked for, with this code."""
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                t.name,
                tuple(TxnOffsetCommitResponsePartition(p.partition_index, code) for p in t.partitions),
            )
            for t in request.topics
        )
    )


def asked(broker: ScriptedBroker) -> list[ApiKey]:
    """What was asked, without what every client asks."""
    plain = {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR}
    return [ApiKey(h.api_key) for h, _ in broker.requests if h.api_key not in plain]
