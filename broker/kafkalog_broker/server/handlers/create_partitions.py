"""CreatePartitions 0-3: widen topics; ``count`` is the new total. Partitions are never taken away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from kafkalog_broker.offsets.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.metadata import live_brokers
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.protocol.api.topics import (
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
        owners = _assigned(wanted, wanted.count - present, ctx)
        yield from topics.adding_partitions(wanted.name, wanted.count, owners, validate_only=validate_only)
    except KafkaError as e:
        return CreatePartitionsTopicResult(name=wanted.name, error_code=ctx.refused(e), error_message=str(e))
    return CreatePartitionsTopicResult(name=wanted.name, error_code=ErrorCode.NONE)


def _assigned(wanted: CreatePartitionsTopic, added: int, ctx: Context) -> tuple[int, ...] | None:
    """The brokers of the added partitions, if the client says so."""
    if wanted.assignments is None or added <= 0:
        return None
    if len(wanted.assignments) != added:
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} new partitions need {added} assignments, not {len(wanted.assignments)}",
        )
    return owners_of([each.broker_ids for each in wanted.assignments], live_brokers(ctx))


def owners_of(assignments: Sequence[Sequence[int]], brokers: Collection[int]) -> tuple[int, ...]:
    """The one broker that each assignment names, of those that are there.
    Raises `ServerError`: one names another, or several.
    """
    if any(len(each) != 1 or each[0] not in brokers for each in assignments):
        names = ", ".join(map(str, sorted(brokers)))
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"each partition can be assigned to one broker, one of those that are there: {names}",
        )
    return tuple(each[0] for each in assignments)
