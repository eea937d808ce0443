"""Transactions at their coordinator, also from another process. Each new producer of a transactional id gets
another epoch, so an older one can neither add to nor end its transaction. Version 2, with an epoch per
transaction, is not supported. Source: KIP-98, 360, 588, 890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster, by_topic
from pyspark_kafkalog.client.groups import (
    CommittedOffset,
    GroupMetadata,
    committable,
    coordinator,
    error_codes,
    find_coordinator,
)
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
    error_for,
    reason,
)
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType
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
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition

T = TypeVar("T")

Offsets = Mapping[TopicPartition, "int | CommittedOffset"]
"""Next offsets to read, alone or with leader epoch and metadata."""

_NEEDED = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN)
_MAX_EPOCH = 2**15 - 1
_KEEPING_VERSION = 3  # since this version InitProducerId can give an existing producer its next epoch

_LOOK_AGAIN = frozenset({
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE,
})  # fmt: skip
"""The coordinator may be another broker now."""

_REASONS = {
    ErrorCode.PRODUCER_FENCED: "a newer producer of this id has taken over, or the transaction was open for "
    "longer than transaction.timeout.ms",
    ErrorCode.INVALID_TXN_STATE: "the transaction was ended the other way, or there is none",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "transaction.timeout.ms is above the broker's "
    "transaction.max.timeout.ms",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator has another producer id for this one, or "
    "no longer knows it",
}


class ProducerEpoch(NamedTuple):
    producer_id: int
    epoch: int

    def next_epoch(self) -> ProducerEpoch | None:
        """The same id with the next epoch, or None after the last. Only its owner may use it."""
        return self._replace(epoch=self.epoch + 1) if self.epoch < _MAX_EPOCH else None


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all stored; anyone with this can end it."""

    transactional_id: str
    producer_id: int
    epoch: int
    empty: bool


class TransactionCoordinator:
    """*Not thread-safe.* One id's coordinator. Calls retry; `ProducerFenced`: the epoch is not the newest."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._node_id: int | None = None

    def init_producer(
        self, timeout_ms: int, deadline: Deadline, *, keep: ProducerEpoch | None = None
    ) -> ProducerEpoch:
        """Start a producer of the id and abort its open transaction; ``keep`` is its epoch, to increase."""

        def ask(connection: Connection) -> ProducerEpoch:
            if keep is not None and connection.version(ApiKey.INIT_PRODUCER_ID) < _KEEPING_VERSION:
                raise UnsupportedVersion(
                    f"{connection.peer}: a producer can only continue after this failure from Kafka 2.5 on"
                )
            request = InitProducerIdRequest(
                self.transactional_id, timeout_ms, *(keep if keep is not None else ())
            )
            answer = connection.request(request, deadline=deadline)
            self._check(answer.error_code, connection.peer)
            return ProducerEpoch(answer.producer_id, answer.producer_epoch)

        return self._at_coordinator("taking over", ask, deadline)

    def add_partitions(
        self, producer: ProducerEpoch, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> None:
        partitions = list(partitions)
        topics = by_topic((tp, tp.partition) for tp in partitions)
        named = tuple(AddPartitionsToTxnTopic(*row) for row in topics.items())
        request = AddPartitionsToTxnRequest((), self.transactional_id, *producer, named)

        def ask(connection: Connection) -> None:
            answer = connection.request(request, deadline=deadline)
            codes = {
                TopicPartition(topic.name, part.partition_index): part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }
            self._check_each(codes, partitions, "AddPartitionsToTxn", connection.peer)

        self._at_coordinator("adding partitions to the transaction", ask, deadline)

    def add_offsets(self, producer: ProducerEpoch, group: str, deadline: Deadline) -> None:
        request = AddOffsetsToTxnRequest(self.transactional_id, *producer, group)
        self._ask("adding a group to the transaction", request, deadline, group)

    def commit_offsets(
        self, producer: ProducerEpoch, committer: GroupMetadata, offsets: Offsets, deadline: Deadline
    ) -> None:
        """Store a group's ``offsets``, after `add_offsets`, at the group's coordinator."""
        left = dict(offsets)
        attempts = self._retrying("committing offsets with the transaction", deadline)
        while left:
            try:
                connection = coordinator(self._cluster, CoordinatorType.GROUP, committer.group, deadline)
                request = _offsets_request(self.transactional_id, producer, committer, left)
                answer = connection.request(request, deadline=deadline)
                codes = error_codes(answer.topics)
                asked = list(left)
                for tp in asked:
                    if codes.get(tp) == ErrorCode.NONE:
                        del left[tp]
                self._check_each(codes, asked, "TxnOffsetCommit", connection.peer, committer.group)
            except KafkaError as e:
                attempts.failed(e)

    def end(self, producer: ProducerEpoch, *, commit: bool, deadline: Deadline) -> None:
        """Commit or abort; may be repeated. Raises `InvalidTxnState` if it ended the other way."""
        request = EndTxnRequest(self.transactional_id, *producer, commit)
        self._ask("committing" if commit else "aborting", request, deadline)

    def _ask(self, doing: str, request: Any, deadline: Deadline, group: str = "") -> None:
        def ask(connection: Connection) -> None:
            answer = connection.request(request, deadline=deadline)
            self._check(answer.error_code, connection.peer, group=group)

        self._at_coordinator(doing, ask, deadline)

    def _at_coordinator(self, doing: str, ask: Callable[[Connection], T], deadline: Deadline) -> T:
        attempts = self._retrying(doing, deadline)
        while True:
            try:
                return ask(self._connection(deadline))
            except KafkaError as e:
                if e.code in _LOOK_AGAIN:
                    self._node_id = None
                attempts.failed(e)

    def _retrying(self, doing: str, deadline: Deadline) -> Any:
        return self._cluster.retrying(f"transactional id {self.transactional_id!r}: {doing}", deadline)

    def _connection(self, deadline: Deadline) -> Connection:
        if self._node_id is None:
            asked = self._cluster.any_connection(deadline)
            if not all(asked.serves(key) for key in _NEEDED):
                raise UnsupportedVersion(
                    f"{asked.peer}: the broker has no transactions, which transactional.id needs: Apache "
                    "Kafka has them since 0.11"
                )
            kind = CoordinatorType.TRANSACTION
            self._node_id = find_coordinator(self._cluster, kind, self.transactional_id, deadline)
        return self._cluster.connection(self._node_id, deadline)

    def _check(
        self, code: ErrorCode, peer: str, *, tp: TopicPartition | None = None, group: str = ""
    ) -> None:
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.INVALID_PRODUCER_EPOCH:
            code = ErrorCode.PRODUCER_FENCED  # the name in Kafka before 2.7
        of_id, topic = self.transactional_id, tp.topic if tp is not None else ""
        is_read = group and code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        right = "Read" if is_read else "Write"
        why = _REASONS.get(code) or reason(code, right, topic=topic, group=group, transactional_id=of_id)
        where = f", {tp}" if tp is not None else ""
        raise error_for(code, f"{peer}: transactional id {of_id!r}{where}: {why}")

    def _check_each(
        self, codes: Mapping[TopicPartition, ErrorCode], asked: Iterable[TopicPartition], api: str, peer: str,
        group: str = "",
    ) -> None:  # fmt: skip
        """Raise the error of one partition, preferably a final one."""
        missing = sorted(str(tp) for tp in asked if tp not in codes)
        if missing:
            raise InvalidRequest(f"{peer}: the {api} response lacks {', '.join(missing)}")
        # OPERATION_NOT_ATTEMPTED follows from another partition's error.
        order = sorted(
            (code.retriable, code == ErrorCode.OPERATION_NOT_ATTEMPTED, tp)
            for tp, code in codes.items()
            if code != ErrorCode.NONE
        )
        for _, _, tp in order:
            self._check(codes[tp], peer, tp=tp, group=group)


def end_transaction(
    cluster: Cluster, prepared: PreparedTransaction, *, commit: bool, deadline: Deadline | None = None
) -> None:
    """Commit or abort a transaction prepared by `Producer.prepare_transaction`, perhaps in another process.

    May be repeated. Raises `InvalidTxnState` if it ended the other way, `InvalidProducerIdMapping` after days
    without use. `ProducerFenced` (another producer began, or ``transaction.timeout.ms`` passed) does not say
    how it ended; offsets committed with it do (`committed_offsets` with ``stable``).
    """
    if prepared.empty:
        return
    producer, limit = ProducerEpoch(prepared.producer_id, prepared.epoch), cluster.limit(deadline)
    TransactionCoordinator(cluster, prepared.transactional_id).end(producer, commit=commit, deadline=limit)


def _offsets_request(
    transactional_id: str, producer: ProducerEpoch, committer: GroupMetadata, offsets: Offsets
) -> TxnOffsetCommitRequest:
    topics = by_topic(
        (tp, TxnOffsetCommitRequestPartition(tp.partition, one.offset, one.leader_epoch, one.metadata))
        for tp, one in ((tp, committable(given)) for tp, given in offsets.items())
    )
    return TxnOffsetCommitRequest(
        transactional_id,
        committer.group,
        *producer,
        generation_id=committer.member.generation,
        member_id=committer.member.member_id,
        group_instance_id=committer.member.instance_id,
        topics=tuple(TxnOffsetCommitRequestTopic(*row) for row in topics.items()),
    )
