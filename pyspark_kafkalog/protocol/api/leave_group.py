"""LeaveGroup, versions 0-5: a member goes; from version 3 several, static ones by their instance.

Flexible from 4. Version 5 has a reason for the log. Left out: nothing.
Source: protocol guide, LeaveGroup; KIP-345, 800.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """An empty ``member_id`` with an instance is whoever has that instance."""

    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    reason: str | None = wire(STRING, 5, null_since=5, ignorable=True)


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING, 0, 2)
    members: tuple[MemberIdentity, ...] = wire(Array(MemberIdentity), 3)


@dataclass(frozen=True, slots=True)
class MemberResponse:
    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    error_code: ErrorCode = wire(ERROR_CODE, 3)


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    members: tuple[MemberResponse, ...] = wire(Array(MemberResponse), 3)
