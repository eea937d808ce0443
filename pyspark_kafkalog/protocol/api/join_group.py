"""JoinGroup, versions 0-9: a member comes, or comes again after each change of its group.

Flexible from 6. Version 4 answers a new member with MEMBER_ID_REQUIRED and its id, 5 has static members, 7
the protocol type, 8 a reason for the log, 9 lets the leader keep its assignment. Left out: nothing.
Source: protocol guide, JoinGroup; KIP-62, 345, 394, 559, 800, 814.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, BYTES, ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class JoinGroupRequestProtocol:
    """An assignment strategy that the member has, and what it tells those who assign by it."""

    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """``member_id`` is empty at first. ``protocols``: those it has, the one it prefers first."""

    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, 1, default=-1, ignorable=True)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 5, null_since=5)
    protocol_type: str = wire(STRING)
    protocols: tuple[JoinGroupRequestProtocol, ...] = wire(Array(JoinGroupRequestProtocol))
    reason: str | None = wire(STRING, 8, null_since=8, ignorable=True)


@dataclass(frozen=True, slots=True)
class JoinGroupResponseMember:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    metadata: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """The leader alone is told the ``members``, and assigns unless ``skip_assignment``."""

    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(STRING, 7, null_since=7, ignorable=True)
    protocol_name: str | None = wire(STRING, default="", null_since=7)
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOL, 9)
    member_id: str = wire(STRING)
    members: tuple[JoinGroupResponseMember, ...] = wire(Array(JoinGroupResponseMember))
