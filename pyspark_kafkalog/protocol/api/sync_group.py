"""SyncGroup, versions 0-5: the leader gives what it assigned, and each member gets its part.

Flexible from 4. Version 3 has static members, 5 the protocol. Left out: nothing.
Source: protocol guide, SyncGroup; KIP-62, 345, 559.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BYTES, ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class SyncGroupRequestAssignment:
    member_id: str = wire(STRING)
    assignment: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """``assignments`` come from the leader alone."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    protocol_type: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    protocol_name: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = wire(Array(SyncGroupRequestAssignment))


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    protocol_type: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    protocol_name: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    assignment: bytes = wire(BYTES)
