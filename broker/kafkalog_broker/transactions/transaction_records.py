"""Keys and values of ``__transaction_state``, in Kafka's layout. Pure.

Key: version 0 and the transactional id. Value: `_Value`; in version 1, which is flexible, if the producer had
another id before. Source: Kafka's ``TransactionLogKey`` and ``TransactionLogValue`` definitions.
"""

from __future__ import annotations

from itertools import groupby

from kafkalog_broker.logs import state_records
from kafkalog_broker.transactions.states import CoordinatorState, Transaction
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.protocol.codec import INT8, INT16, INT32, INT64, STRING, Array, WireStruct, wire
from pyspark_kafkalog.types import TopicPartition

_KEY_VERSION = 0
_FLEXIBLE = 1


class _Partitions(WireStruct):
    topic: str = wire(STRING)
    numbers: tuple[int, ...] = wire(Array(INT32))


class _Value(WireStruct):
    """``partitions`` is null in state Empty."""

    producer_id: int = wire(INT64)
    previous_producer_id: int = wire(INT64, 1, tag=0, default=-1)
    next_producer_id: int = wire(INT64, 1, tag=1, default=-1)
    epoch: int = wire(INT16)
    timeout_ms: int = wire(INT32)
    state: int = wire(INT8)
    partitions: tuple[_Partitions, ...] | None = wire(Array(_Partitions), null_since=0)
    changed_ms: int = wire(INT64)
    started_ms: int = wire(INT64, default=-1)
    client_transaction_version: int = wire(INT16, 1, tag=2)


def encode_key(transactional_id: str) -> bytes:
    return state_records.encode_strings(_KEY_VERSION, transactional_id)


def encode_value(transaction: Transaction) -> bytes:
    topics = groupby(sorted(transaction.partitions), key=lambda p: p.topic)
    partitions = tuple(_Partitions(topic, tuple(p.partition for p in group)) for topic, group in topics)
    version = 0 if transaction.last_producer_id < 0 else _FLEXIBLE
    value = _Value(
        producer_id=transaction.producer_id, previous_producer_id=transaction.last_producer_id,
        epoch=transaction.epoch, timeout_ms=transaction.timeout_ms, state=transaction.state,
        partitions=None if transaction.state is CoordinatorState.EMPTY else partitions,
        changed_ms=transaction.changed_ms, started_ms=transaction.started_ms,
    )  # fmt: skip
    return state_records.encode_struct(value, version, flexible=version == _FLEXIBLE)


def decode_key(data: bytes) -> str | None:
    """None for a key of another kind. Raises `CorruptMessage`: the key is truncated."""
    if state_records.version_of(data) != _KEY_VERSION:
        return None
    (transactional_id,), _ = state_records.decode_strings(data, 1)
    return transactional_id


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    """Reads version 0 or 1. Raises `CorruptMessage`: truncated, or another version."""
    value = state_records.decode_struct(_Value, data, _FLEXIBLE, flexible_since=_FLEXIBLE)
    try:
        state = CoordinatorState(value.state)
    except ValueError:
        raise CorruptMessage(f"transactional id {transactional_id!r}: unknown state {value.state}") from None
    partitions = (TopicPartition(t.topic, number) for t in value.partitions or () for number in t.numbers)
    return Transaction(
        transactional_id, value.producer_id, value.epoch, value.timeout_ms, state, value.changed_ms,
        frozenset(partitions), value.started_ms, last_producer_id=value.previous_producer_id,
    )  # fmt: skip
