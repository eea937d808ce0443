"""The seam between the transaction coordinator and the other brokers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kafkalog_broker.transactions.states import Transaction
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import TopicPartition

Refusals = Mapping[TopicPartition, KafkaError]
"""The partitions that must not be written to, and why."""


class RemoteCoordinators(Protocol):
    """Implemented and documented by `kafkalog_broker.cluster.transactions.ClusterTransactions`."""

    def elsewhere(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]: ...

    def send_markers(
        self,
        known: Transaction,
        partitions: Iterable[TopicPartition],
        written: Callable[[], None],
        delayed: Callable[[], None],
    ) -> None: ...

    def holders(
        self, producer_ids: Iterable[int], on_answer: Callable[[frozenset[int] | None], None]
    ) -> None: ...

    def unknown(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]: ...

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        on_answer: Callable[[Refusals], None],
        *,
        adding: bool,
    ) -> None: ...

    def writing(
        self, partition: TopicPartition, producer_id: int, epoch: int
    ) -> AbstractContextManager[None]: ...

    def ending(self, partition: TopicPartition, producer_id: int) -> AbstractContextManager[None]: ...
