"""OffsetCommit 0-9: store what a group has read: its members do, or anybody while it has none.

Version 0 stores it in ZooKeeper where this broker has one, and else where the others do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalog_broker.group.group import NoSuchGroup
from kafkalog_broker.group.group_offsets import encode_offsets
from kafkalog_broker.offsets.offset_records import NO_EXPIRY, CommittedOffset
from kafkalog_broker.server.dispatch import LATER, Context, handles
from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from pyspark_kafkalog.protocol.api.transactions import TxnOffsetCommitRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from kafkalog_broker.server.registration import ZooKeeperOffsets

A_STEP = 100
"""So many partitions are looked at between two turns of others."""

_NO_GROUP_SINCE = 9
"""Before, a member of a group that does not exist is told that its generation does not."""


@handles(
    ApiKey.OFFSET_COMMIT,
    versions=(0, 9),
    needs=((Operation.READ, ResourceType.GROUP), (Operation.READ, ResourceType.TOPIC)),
)
def offset_commit(request: OffsetCommitRequest, ctx: Context) -> Steps[Any]:
    """Store the offsets of all partitions that exist; the others get error 3."""
    now = ctx.services.clock.time_ms()
    retention_ms = request.retention_time_ms
    # Clients ask for 2**63 - 1 if they mean "forever"; the sum must fit its field.
    expires = min(now + retention_ms, LONG_MAX) if retention_ms >= 0 else NO_EXPIRY
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    except KafkaError as e:
        return _response(request, defaultdict(partial(ErrorCode, ctx.refused(e))))

    def value(commit: OffsetCommitRequestPartition) -> CommittedOffset:
        return CommittedOffset(
            commit.committed_offset,
            commit.committed_leader_epoch,
            commit.committed_metadata or "",
            commit.commit_timestamp if commit.commit_timestamp >= 0 else now,
            expires,
        )

    accepted, codes = yield from check_offsets(request, value, ctx)
    zookeeper = ctx.services.zookeeper_offsets
    if ctx.version == 0 and zookeeper is not None:
        zookeeper.in_turn(ctx.later(lambda: _to_zookeeper(request, accepted, codes, zookeeper, ctx)))
        return LATER
    encoded = None
    if len(accepted) > A_STEP:
        encoded = yield from encode_offsets(request.group_id, accepted, now)
    try:
        ctx.services.groups.offsets.commit(
            request.group_id,
            accepted,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            version=ctx.version,
            encoded=encoded,
        )
    except KafkaError as e:
        code = ctx.refused(e)
        if isinstance(e, NoSuchGroup) and ctx.version < _NO_GROUP_SINCE:
            code = ErrorCode.ILLEGAL_GENERATION
        codes.update(dict.fromkeys(accepted, code))
    return _response(request, codes)


def _to_zookeeper(
    request: OffsetCommitRequest,
    accepted: Mapping[TopicPartition, CommittedOffset],
    codes: dict[TopicPartition, ErrorCode],
    zookeeper: ZooKeeperOffsets,
    ctx: Context,
) -> OffsetCommitResponse:
    """Metadata have no place there. Once ZooKeeper does not answer, nothing further is tried."""
    lost: ErrorCode | None = None
    for partition, value in accepted.items():
        if lost is None:
            try:
                zookeeper.write(request.group_id, partition, value.offset)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
                lost = e.code if e.code is ErrorCode.REQUEST_TIMED_OUT else None
        else:
            codes[partition] = lost
    return _response(request, codes)


def _response(
    request: OffsetCommitRequest, codes: Mapping[TopicPartition, ErrorCode]
) -> OffsetCommitResponse:
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


def check_offsets(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    value: Callable[[Any], CommittedOffset],
    ctx: Context,
) -> Steps[tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]]:
    """What may be stored: the ``value`` of each partition's commit; and the codes of all partitions."""
    accepted: dict[TopicPartition, CommittedOffset] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for commit in topic.partitions:
            partition = TopicPartition(topic.name, commit.partition_index)
            offset = value(commit)
            try:
                _check(partition, offset, ctx)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
            else:
                accepted[partition], codes[partition] = offset, ErrorCode.NONE
            if not len(codes) % A_STEP:
                yield None
    return accepted, codes


def _check(partition: TopicPartition, offset: CommittedOffset, ctx: Context) -> None:
    services = ctx.services
    ctx.demand(Operation.READ, ResourceType.TOPIC, partition.topic)
    services.logs.check_exists(partition)
    limit = services.config.offset_metadata_max_bytes
    if len(offset.metadata.encode()) > limit:
        raise ServerError(
            ErrorCode.OFFSET_METADATA_TOO_LARGE, f"{partition}: offset.metadata.max.bytes is {limit}"
        )
