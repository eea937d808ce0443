"""ListGroups, versions 0-5: the groups that one broker coordinates.

Flexible from 3. Version 4 has states, and a filter by state, 5 the same for types. Left out: nothing.
Source: protocol guide, ListGroups; KIP-518, 848.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """Without a filter: groups in any state, of any type."""

    states_filter: tuple[str, ...] = wire(Array(STRING), 4)
    types_filter: tuple[str, ...] = wire(Array(STRING), 5)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group; the protocol type is empty if it only has offsets. The type is "classic" or "consumer"."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, 4, ignorable=True)
    group_type: str = wire(STRING, 5, ignorable=True)


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """The groups of this broker; the list may be incomplete with COORDINATOR_LOAD_IN_PROGRESS."""

    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    groups: tuple[ListedGroup, ...] = wire(Array(ListedGroup))
