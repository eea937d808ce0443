"""DeleteTopics, versions 0-6.

Flexible from 4. Up to version 5 the request lists ``topic_names``; version 6 lists ``topics`` by name or id.
Version 1 added the throttle time. Source: protocol guide, DeleteTopics; KIP-4, 516.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, UUID_TYPE, Array, wire


@dataclass(frozen=True, slots=True)
class DeleteTopicState:
    """A topic by name or, if that is null, by id."""

    name: str | None = wire(STRING, 6, null_since=6)
    topic_id: UUID = wire(UUID_TYPE, 6)


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicState, ...] = wire(Array(DeleteTopicState), 6)
    topic_names: tuple[str, ...] = wire(Array(STRING), 0, 5, ignorable=True)
    timeout_ms: int = wire(INT32)


@dataclass(frozen=True, slots=True)
class DeletableTopicResult:
    """The result for one topic; ``name`` is null for an unknown id."""

    name: str | None = wire(STRING, null_since=6)
    topic_id: UUID = wire(UUID_TYPE, 6, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, 5, null_since=5, ignorable=True)


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = wire(Array(DeletableTopicResult))
