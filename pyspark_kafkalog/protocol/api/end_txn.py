"""EndTxn, versions 0-5: commits or aborts a transaction.

Flexible from 3. From version 2 a fenced producer gets an error code of its own, from 4 also one that must
abort. In 5 each transaction has an epoch of its own: the answer has the next one's.
Source: protocol guide, EndTxn; KIP-98, 588, 890.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT16, INT32, INT64, STRING, wire


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """The decision is stored; the markers in the partitions follow."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    producer_id: int = wire(INT64, 5, default=-1, ignorable=True)
    producer_epoch: int = wire(INT16, 5, default=-1, ignorable=True)
