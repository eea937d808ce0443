"""DeleteRecords 0-2: have logs begin at an offset, durably; -1 is the end.

A segment goes once all of it is below the start; what is below within the first one just cannot be read.
"""

from __future__ import annotations

from functools import partial

from kafkalog_broker.offsets.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.served_logs import TimeAllowance
from pyspark_kafkalog.errors import ErrorCode, InvalidTopic, KafkaError, OffsetOutOfRange, ServerError
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_THE_END = -1


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2), needs=((Operation.DELETE, ResourceType.TOPIC),))
def delete_records(request: DeleteRecordsRequest, ctx: Context) -> Steps[DeleteRecordsResponse]:
    """Where each partition begins then; an error in one leaves the others as they are."""
    time = TimeAllowance(ctx.services.clock)
    topics = []
    for topic in request.topics:
        partitions = []
        for want in topic.partitions:
            partitions.append((yield from _delete(topic.name, want, ctx, time)))
            yield None
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    return DeleteRecordsResponse(topics=tuple(topics))


def _delete(
    topic: str, want: DeleteRecordsPartition, ctx: Context, time: TimeAllowance
) -> Steps[DeleteRecordsPartitionResult]:
    partition, logs = TopicPartition(topic, want.partition_index), ctx.services.logs
    try:
        time.check()
        ctx.demand(Operation.DELETE, ResourceType.TOPIC, topic)
        log = logs.log(partition)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {topic!r} is internal: its records are not to be deleted")
        if "delete" not in log.config.cleanup_policy:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"{partition}: records can be deleted only where delete is in cleanup.policy, which is"
                f" {','.join(log.config.cleanup_policy)}",
            )
        offset = log.readable_end if want.offset == _THE_END else want.offset
        if offset < 0:
            raise OffsetOutOfRange(str(partition), offset, log.start_offset, log.readable_end)
        # It waits for the disk.
        start_offset: int = yield partial(logs.delete_records, partition, offset)
    except KafkaError as e:
        return DeleteRecordsPartitionResult(
            partition_index=want.partition_index, low_watermark=-1, error_code=ctx.refused(e)
        )
    return DeleteRecordsPartitionResult(
        partition_index=want.partition_index, low_watermark=start_offset, error_code=ErrorCode.NONE
    )
