"""InitProducerId, versions 0-5: assigns a producer id and its epoch.

Flexible from 2. Left out: 6 (two-phase commit).
Source: protocol guide, InitProducerId; KIP-98, 360.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT16, INT32, INT64, STRING, wire


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Null ``transactional_id``: idempotence only. From version 3 a producer may keep its id."""

    transactional_id: str | None = wire(STRING, null_since=0)
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, 3, default=-1)
    producer_epoch: int = wire(INT16, 3, default=-1)


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """The id, and the epoch that fences older producers with it."""

    throttle_time_ms: int = wire(INT32, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)
