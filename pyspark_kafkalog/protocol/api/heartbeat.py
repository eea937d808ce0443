"""Heartbeat, versions 0-4: a member is alive, and learns that its group is changing.

Flexible from 4. Version 3 has static members. Left out: nothing.
Source: protocol guide, Heartbeat; KIP-62, 345.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, wire


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
