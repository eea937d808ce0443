"""AddOffsetsToTxn, versions 0-4: adds a group's offsets to a transaction.

Flexible from 3. From version 2 a fenced producer gets an error code of its own, from 4 also one that must
abort. Source: protocol guide, AddOffsetsToTxn; KIP-98, 588, 890.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT16, INT32, INT64, STRING, wire


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
