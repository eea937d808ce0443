"""OffsetDelete 0: forgets a group's offsets, except of topics that a member reads. Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.offset_commit import A_STEP
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition


@handles(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    needs=((Operation.DELETE, ResourceType.GROUP), (Operation.READ, ResourceType.TOPIC)),
)
def offset_delete(request: OffsetDeleteRequest, ctx: Context) -> Steps[OffsetDeleteResponse]:
    """A code for each partition; those that do not exist get error 3."""
    codes: dict[TopicPartition, ErrorCode] = {}
    present: list[TopicPartition] = []
    try:
        ctx.demand(Operation.DELETE, ResourceType.GROUP, request.group_id)
    except KafkaError as e:
        return OffsetDeleteResponse(error_code=ctx.refused(e))
    for topic in request.topics:
        for wanted in topic.partitions:
            partition = TopicPartition(topic.name, wanted.partition_index)
            try:
                ctx.demand(Operation.READ, ResourceType.TOPIC, topic.name)
                ctx.services.logs.check_exists(partition)
                present.append(partition)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
            if not (len(present) + len(codes)) % A_STEP:
                yield None
    try:
        if not request.group_id:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "offsets are deleted of a group with a name")
        codes.update(ctx.services.groups.offsets.delete(request.group_id, present))
    except KafkaError as e:
        return OffsetDeleteResponse(error_code=ctx.refused(e))
    return OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes[TopicPartition(topic.name, each.partition_index)],
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
