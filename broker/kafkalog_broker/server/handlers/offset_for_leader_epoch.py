"""OffsetForLeaderEpoch 2-4: the only leader epoch is 0, and it ends where the log does.

Left out: replicas, which a broker of a cluster would be asked by.
"""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.served_logs import LEADER_EPOCH, Allowance, check_leader_epoch
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.log_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_A_STEP = 100
"""So many partitions are looked at between two turns of others."""


@handles(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    needs=((Operation.CLUSTER_ACTION, ResourceType.CLUSTER), (Operation.DESCRIBE, ResourceType.TOPIC)),
)
def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, ctx: Context
) -> Steps[OffsetForLeaderEpochResponse]:
    """The end for epoch 0, -1 and -1 for any other; an error in one leaves the others as they are."""
    topics, done = [], 0
    for topic in request.topics:
        partitions = []
        for want in topic.partitions:
            partitions.append(_end(topic.topic, want, ctx))
            done += 1
            if not done % _A_STEP:
                yield None
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


def _end(topic: str, want: OffsetForLeaderPartition, ctx: Context) -> EpochEndOffset:
    partition = TopicPartition(topic, want.partition)
    try:
        if not ctx.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        check_leader_epoch(partition, want.current_leader_epoch)
        log = ctx.services.logs.readable(partition, Allowance())
    except KafkaError as e:
        return EpochEndOffset(partition=want.partition, error_code=ctx.refused(e))
    if want.leader_epoch != LEADER_EPOCH:
        return EpochEndOffset(partition=want.partition)
    return EpochEndOffset(partition=want.partition, leader_epoch=LEADER_EPOCH, end_offset=log.readable_end)
