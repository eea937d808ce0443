"""DescribeProducers 0: who writes to a partition, and since which offset a transaction is open there."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_COORDINATOR_EPOCH = 0
"""There is one coordinator, and it never moves."""


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), needs=((Operation.READ, ResourceType.TOPIC),))
def describe_producers(request: DescribeProducersRequest, ctx: Context) -> Steps[DescribeProducersResponse]:
    """An error in one partition leaves the others as they are; one named again is not described again."""
    topics, described = [], set[TopicPartition]()
    for topic in request.topics:
        partitions = []
        for number in topic.partition_indexes:
            partition = TopicPartition(topic.name, number)
            if partition not in described:
                described.add(partition)
                partitions.append(_describe(partition, ctx))
            yield None
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(topics=tuple(topics))


def _describe(partition: TopicPartition, ctx: Context) -> PartitionResponse:
    try:
        ctx.demand(Operation.READ, ResourceType.TOPIC, partition.topic)
        known = ctx.services.logs.log(partition).known_producers()
    except KafkaError as e:
        return PartitionResponse(
            partition_index=partition.partition, error_code=ctx.refused(e), error_message=str(e)
        )
    return PartitionResponse(
        partition_index=partition.partition,
        error_message=None,
        active_producers=tuple(
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=_COORDINATOR_EPOCH,
                current_txn_start_offset=each.open_offset,
            )
            for each in known
        ),
    )
