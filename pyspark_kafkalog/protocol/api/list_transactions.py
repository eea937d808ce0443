"""ListTransactions, versions 0-1: the transactional ids of one coordinator.

Flexible from 0. Version 1 has a filter by duration. Left out: 2, a filter by name.
Source: protocol guide, ListTransactions; KIP-664, 994.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """Without filters: all. ``duration_filter`` in ms, -1 for any."""

    state_filters: tuple[str, ...] = wire(Array(STRING))
    producer_id_filters: tuple[int, ...] = wire(Array(INT64))
    duration_filter: int = wire(INT64, 1, default=-1)


@dataclass(frozen=True, slots=True)
class TransactionState:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    unknown_state_filters: tuple[str, ...] = wire(Array(STRING))
    transaction_states: tuple[TransactionState, ...] = wire(Array(TransactionState))
