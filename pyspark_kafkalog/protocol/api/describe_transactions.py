"""DescribeTransactions, version 0: what a coordinator knows of transactional ids.

Flexible from 0. Source: protocol guide, DescribeTransactions; KIP-664.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT16, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...] = wire(Array(STRING))


@dataclass(frozen=True, slots=True)
class TopicData:
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The state is one of Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""

    error_code: ErrorCode = wire(ERROR_CODE)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: tuple[TopicData, ...] = wire(Array(TopicData))


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    transaction_states: tuple[TransactionState, ...] = wire(Array(TransactionState))
