"""Assign producer ids, and describe the producers of partitions.

API                Versions  Left out
-----------------  --------  --------
InitProducerId     0-5       nothing
DescribeProducers  0         nothing

As in Kafka, a producer without a transactional id always gets a new producer id with epoch 0, even if it
names the one it had. A producer with a transactional id fences the producer that had it before, whose
transaction is aborted first.
"""

from __future__ import annotations

from typing import Any

from kafkalog_broker.server.dispatch import LATER, Context, always, handles
from kafkalog_broker.transactions.producer_ids import NoProducerId
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api import producers as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.types import TopicPartition

_NOT_GIVEN = -1


@handles(
    ApiKey.INIT_PRODUCER_ID,
    (0, 5),
    (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
    (Operation.WRITE, ResourceType.TOPIC),
    takes_long=lambda request, ctx: (
        request.transactional_id is not None and not ctx.services.transactions.opened
    ),
)
def init_producer_id(request: api.InitProducerIdRequest, ctx: Context) -> Any:
    """Assign a producer id and epoch."""
    services = ctx.services
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            _demand_idempotent_write(ctx)
        elif not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        else:
            ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
            has = (request.producer_id, request.producer_epoch)
            if (has[0] == _NOT_GIVEN) != (has[1] == _NOT_GIVEN):
                raise InvalidRequest(f"{transactional_id!r}: producer {has[0]} with epoch {has[1]}")
            if not services.transactions.opened:
                services.transactions.open()  # in a cluster it asks ZooKeeper
        return _init(request, ctx)
    except NoProducerId:
        services.producer_ids.reserve(ctx.later(lambda: _init_or_fail(request, ctx)))
        return LATER
    except KafkaError as e:
        return _init_failed(e, ctx)


def _init(request: api.InitProducerIdRequest, ctx: Context) -> api.InitProducerIdResponse:
    services = ctx.services
    if request.transactional_id is None:
        return api.InitProducerIdResponse(producer_id=services.producer_ids.next(), producer_epoch=0)
    has = (request.producer_id, request.producer_epoch)
    producer_id, epoch = services.transactions.initialize(
        request.transactional_id, request.transaction_timeout_ms, None if has[0] == _NOT_GIVEN else has
    )
    return api.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _init_or_fail(request: api.InitProducerIdRequest, ctx: Context) -> api.InitProducerIdResponse:
    try:
        return _init(request, ctx)
    except KafkaError as e:
        return _init_failed(e, ctx)


def _demand_idempotent_write(ctx: Context) -> None:
    """A client that may write to any topic may do it with a producer id."""
    if not (
        ctx.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        or ctx.allows_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        ctx.demand(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


def _init_failed(error: KafkaError, ctx: Context) -> api.InitProducerIdResponse:
    return api.InitProducerIdResponse(error_code=ctx.refused(error), producer_id=-1, producer_epoch=-1)


_COORDINATOR_EPOCH = 0
"""Coordinators never move."""


@handles(ApiKey.DESCRIBE_PRODUCERS, (0, 0), (Operation.READ, ResourceType.TOPIC), takes_long=always)
def describe_producers(request: api.DescribeProducersRequest, ctx: Context) -> api.DescribeProducersResponse:
    """List who writes to a partition, and since which offset a transaction is open there."""
    topics, described = [], set[TopicPartition]()
    for topic in request.topics:
        partitions = []
        for number in topic.partition_indexes:
            partition = TopicPartition(topic.name, number)
            if partition not in described:
                described.add(partition)
                partitions.append(_describe_partition(partition, ctx))
        topics.append(api.TopicResponse(name=topic.name, partitions=tuple(partitions)))
    return api.DescribeProducersResponse(topics=tuple(topics))


def _describe_partition(partition: TopicPartition, ctx: Context) -> api.PartitionResponse:
    try:
        ctx.demand(Operation.READ, ResourceType.TOPIC, partition.topic)
        known = ctx.services.logs.log(partition).known_producers()
    except KafkaError as e:
        return api.PartitionResponse(
            partition_index=partition.partition, error_code=ctx.refused(e), error_message=str(e)
        )
    return api.PartitionResponse(
        partition_index=partition.partition,
        active_producers=tuple(
            api.ProducerState(
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
