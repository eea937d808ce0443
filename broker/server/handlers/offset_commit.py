"""OffsetCommit 2-8: store what a group has read. Groups without members only: generation -1."""

from __future__ import annotations

from broker.group.offsets import NO_EXPIRY, CommittedOffset
from broker.server.context import Context
from broker.server.registry import handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition

_AS_COMMIT_ERROR = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What the log said in words that clients expect of a coordinator: the second makes them ask again."""


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 8))
def offset_commit(request: OffsetCommitRequest, ctx: Context) -> OffsetCommitResponse:
    """Store the offsets of all partitions that exist; the others get error 3."""
    codes: dict[TopicPartition, ErrorCode] = {}
    accepted: dict[TopicPartition, CommittedOffset] = {}
    now = ctx.services.clock.time_ms()
    expires = now + request.retention_time_ms if request.retention_time_ms >= 0 else NO_EXPIRY
    for topic in request.topics:
        for commit in topic.partitions:
            partition = TopicPartition(topic.name, commit.partition_index)
            try:
                accepted[partition] = _check(partition, commit, now, expires, ctx)
                codes[partition] = ErrorCode.NONE
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
    try:
        _check_group(request)
        ctx.services.offsets.commit(request.group_id, accepted)
    except KafkaError as e:
        code = ctx.refused(e)
        codes.update(dict.fromkeys(accepted, _AS_COMMIT_ERROR.get(code, code)))
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=commit.partition_index,
                        error_code=codes[TopicPartition(topic.name, commit.partition_index)],
                    )
                    for commit in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _check(
    partition: TopicPartition, commit: OffsetCommitRequestPartition, now: int, expires: int, ctx: Context
) -> CommittedOffset:
    services = ctx.services
    services.logs.check_exists(partition)
    metadata = commit.committed_metadata or ""
    limit = services.config.offset_metadata_max_bytes
    if len(metadata.encode()) > limit:
        raise ServerError(
            ErrorCode.OFFSET_METADATA_TOO_LARGE, f"{partition}: offset.metadata.max.bytes is {limit}"
        )
    return CommittedOffset(commit.committed_offset, commit.committed_leader_epoch, metadata, now, expires)


def _check_group(request: OffsetCommitRequest) -> None:
    """Only commits outside of any generation can be right: no group has members.

    Raises:
        ServerError: ILLEGAL_GENERATION for a commit as a member.
    """
    if request.generation_id_or_member_epoch >= 0:
        raise ServerError(
            ErrorCode.ILLEGAL_GENERATION,
            f"group {request.group_id!r} has no generation {request.generation_id_or_member_epoch}",
        )
