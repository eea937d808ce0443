"""ListGroups, versions 0-4: the groups that one broker coordinates.

Flexible from 3. Version 4 tells and filters by state. Left out: 5 (types of groups, of KIP-848).
Source: protocol guide, ListGroups; KIP-518.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.schema import ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """Which groups are there? Without ``states_filter`` those of every state."""

    states_filter: tuple[str, ...] = wire(Array(STRING), 4)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group; the protocol type of one that only keeps offsets is empty."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, 4, ignorable=True)


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """The groups of this broker; with COORDINATOR_LOAD_IN_PROGRESS perhaps not all."""

    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    groups: tuple[ListedGroup, ...] = wire(Array(ListedGroup))
