"""CreatePartitions 0-3: widen topics; ``count`` is the new total. Partitions are never taken away."""

from __future__ import annotations

from collections import Counter

from broker.offsets.offset_records import INTERNAL_TOPICS
from broker.server.dispatch import Context, handles
from broker.server.served_logs import RegisteredElsewhere
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.protocol.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), needs=((Operation.ALTER, ResourceType.TOPIC),))
def create_partitions(request: CreatePartitionsRequest, ctx: Context) -> Steps[CreatePartitionsResponse]:
    """A result for each topic; one asked for twice is refused."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        results.append((yield from _widen(topic, times[topic.name], request.validate_only, ctx)))
        yield None
    return CreatePartitionsResponse(results=tuple(results))


def _widen(
    wanted: CreatePartitionsTopic, times: int, validate_only: bool, ctx: Context
) -> Steps[CreatePartitionsTopicResult]:
    topics = ctx.services.topics
    try:
        if times > 1:
            raise InvalidRequest(f"topic {wanted.name!r} is in the request {times} times")
        ctx.demand(Operation.ALTER, ResourceType.TOPIC, wanted.name)
        if wanted.name in INTERNAL_TOPICS:
            # A group's partition follows from their number: with another one its offsets could not be found.
            raise InvalidTopic(f"topic {wanted.name!r} is internal: its partitions cannot be changed")
        present = len(topics.get(wanted.name).partitions)
        _check_assignments(wanted, wanted.count - present, ctx.services.config.node_id)
        yield from topics.adding_partitions(wanted.name, wanted.count, validate_only=validate_only)
    except KafkaError as refused:
        # A client would ask again and again for what is another broker's.
        e = InvalidPartitions(str(refused)) if isinstance(refused, RegisteredElsewhere) else refused
        return CreatePartitionsTopicResult(name=wanted.name, error_code=ctx.refused(e), error_message=str(e))
    return CreatePartitionsTopicResult(name=wanted.name, error_code=ErrorCode.NONE)


def _check_assignments(wanted: CreatePartitionsTopic, added: int, node_id: int) -> None:
    """Each added partition's brokers, if given, can only be this one."""
    if wanted.assignments is None or added <= 0:
        return
    if len(wanted.assignments) != added or any(a.broker_ids != (node_id,) for a in wanted.assignments):
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} new partitions need {added} assignments, each to broker {node_id} alone",
        )
