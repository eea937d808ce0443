"""FindCoordinator, versions 0-4: the broker that coordinates a group or a transactional id.

Flexible from 3. Up to version 3 the request has one ``key`` and the response one coordinator; version 4
has ``coordinator_keys`` and ``coordinators``.
Left out: 5 and later (error codes of KIP-890, share groups).
Source: protocol guide, FindCoordinator; KIP-699.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, wire


class CoordinatorType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """A group, or (``key_type`` 1, from version 1) a transactional id."""

    key: str = wire(STRING, 0, 3)
    key_type: int = wire(INT8, 1)
    coordinator_keys: tuple[str, ...] = wire(Array(STRING), 4)


@dataclass(frozen=True, slots=True)
class Coordinator:
    key: str = wire(STRING, 4)
    node_id: int = wire(INT32, 4)
    host: str = wire(STRING, 4)
    port: int = wire(INT32, 4)
    error_code: ErrorCode = wire(ERROR_CODE, 4)
    error_message: str | None = wire(STRING, 4, null_since=4, ignorable=True)


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE, 0, 3)
    error_message: str | None = wire(STRING, 1, 3, null_since=1, ignorable=True)
    node_id: int = wire(INT32, 0, 3)
    host: str = wire(STRING, 0, 3)
    port: int = wire(INT32, 0, 3)
    coordinators: tuple[Coordinator, ...] = wire(Array(Coordinator), 4)
