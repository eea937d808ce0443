"""CreateTopics 0-7: make topics, each on its own; one that cannot be made does not fail the others.

One broker keeps one copy: replication factor 1 or -1, or an assignment that names one live broker for each
partition; without one the live brokers have the partitions in turn. Partition count -1 means
``num.partitions``. The property ``generation`` (ours; 0.7 or 0.8) says which messages a topic will hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from kafkalog_broker.offsets.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.configs import topic_entries
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.create_partitions import owners_of
from kafkalog_broker.server.handlers.metadata import live_brokers
from kafkalog_broker.server.served_topics import family_and_properties
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_DEFAULT = -1


@handles(
    ApiKey.CREATE_TOPICS,
    versions=(0, 7),
    needs=(
        (Operation.CREATE, ResourceType.CLUSTER),
        (Operation.CREATE, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ),
)
def create_topics(request: CreateTopicsRequest, ctx: Context) -> Steps[CreateTopicsResponse]:
    """A result for each topic; a name asked for twice is refused both times, as in Kafka."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        results.append((yield from _create(topic, times[topic.name], request.validate_only, ctx)))
        yield None
    return CreateTopicsResponse(topics=tuple(results))


def _create(
    wanted: CreatableTopic, times: int, validate_only: bool, ctx: Context
) -> Steps[CreatableTopicResult]:
    topics = ctx.services.topics
    try:
        if times > 1:
            raise InvalidRequest(f"topic {wanted.name!r} is in the request {times} times")
        if not ctx.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            ctx.demand(Operation.CREATE, ResourceType.TOPIC, wanted.name)
        if wanted.name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {wanted.name!r} is internal: the broker makes it itself")
        count, owners = _placement(wanted, ctx)
        overrides = _overrides(wanted)
        if validate_only:
            topics.check_new(wanted.name, count, overrides)
            topic_id = None
        else:
            topic_id = (yield from topics.creating(wanted.name, count, overrides, owners)).topic_id
    except KafkaError as e:
        return CreatableTopicResult(
            name=wanted.name,
            error_code=ctx.refused(e),
            error_message=str(e),
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
    if not ctx.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, wanted.name):
        hidden = CreatableTopicResult(
            name=wanted.name,
            error_code=ErrorCode.NONE,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
        return hidden if topic_id is None else replace(hidden, topic_id=topic_id)
    family, properties = family_and_properties(overrides)
    result = CreatableTopicResult(
        name=wanted.name,
        error_code=ErrorCode.NONE,
        num_partitions=count,
        replication_factor=1,
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in topic_entries(ctx.services.settings, properties, family.generation)
        ),
    )
    return result if topic_id is None else replace(result, topic_id=topic_id)


def _placement(wanted: CreatableTopic, ctx: Context) -> tuple[int, tuple[int, ...] | None]:
    """How many partitions the topic gets, and the brokers they are assigned to, if the client says so."""
    if wanted.assignments:
        if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
            raise InvalidRequest("with an assignment, partition count and replication factor must be -1")
        owners = _assigned(wanted.assignments, live_brokers(ctx))
        return len(owners), owners
    if wanted.replication_factor not in (_DEFAULT, 1):
        alone = "with 1 broker" if len(live_brokers(ctx)) == 1 else "as a partition is on 1 broker,"
        raise ServerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted.replication_factor}; {alone} it can be 1 or -1 only",
        )
    default = wanted.num_partitions == _DEFAULT
    return ctx.services.config.num_partitions if default else wanted.num_partitions, None


def _assigned(
    assignments: tuple[CreatableReplicaAssignment, ...], brokers: Collection[int]
) -> tuple[int, ...]:
    """The brokers of partitions 0 to n-1, each of which is on one of ``brokers``."""
    indexes = sorted(assignment.partition_index for assignment in assignments)
    if indexes != list(range(len(indexes))):
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions must be 0 to their count - 1"
        )
    return owners_of([each.broker_ids for each in sorted(assignments, key=_index)], brokers)


def _index(assignment: CreatableReplicaAssignment) -> int:
    return assignment.partition_index


def _overrides(wanted: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for item in wanted.configs:
        if item.value is None:
            raise InvalidConfig(f"topic property {item.name} has no value")
        if item.name in overrides:
            raise InvalidConfig(f"topic property {item.name} is given twice")
        overrides[item.name] = item.value
    return overrides
