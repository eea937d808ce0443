"""Create and delete topics, and add partitions to them.

API               Versions  Left out
----------------  --------  ---------------------------------
CreateTopics      0-7       more than one copy of a partition
DeleteTopics      0-6       nothing
CreatePartitions  0-3       nothing

A partition is on one broker: replication factor 1 or -1, or an assignment that names one live broker for each
partition. Without an assignment the live brokers get the partitions in turn. Partition count -1 means
``num.partitions``. The property ``generation`` (ours; 0.7 or 0.8) says which messages a topic will hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from uuid import UUID

from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.broker_settings import topic_entries
from kafkalog_broker.server.dispatch import Context, always, handles
from kafkalog_broker.server.handlers.metadata import live_brokers
from kafkalog_broker.server.topics import family_and_properties
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.protocol.api import topics as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType

_BROKERS_DEFAULT = -1


@handles(
    ApiKey.CREATE_TOPICS, (0, 7), (Operation.CREATE, ResourceType.CLUSTER),
    (Operation.CREATE, ResourceType.TOPIC), (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    takes_long=always,
)  # fmt: skip
def create_topics(request: api.CreateTopicsRequest, ctx: Context) -> api.CreateTopicsResponse:
    """Create topics; one that cannot be created does not fail the others."""
    times = Counter(topic.name for topic in request.topics)
    return api.CreateTopicsResponse(
        topics=tuple(
            _create_topic(topic, times[topic.name], request.validate_only, ctx)
            for topic in {topic.name: topic for topic in request.topics}.values()
        )
    )


def _create_topic(
    wanted: api.CreatableTopic, times: int, validate_only: bool, ctx: Context
) -> api.CreatableTopicResult:
    topics, topic_id = ctx.services.topics, ZERO_UUID
    result = partial(api.CreatableTopicResult, name=wanted.name)
    bare = partial(result, num_partitions=-1, replication_factor=-1, configs=())
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
        else:
            topic_id = topics.create(wanted.name, count, overrides, owners).topic_id
    except KafkaError as e:
        return bare(error_code=ctx.refused(e), error_message=str(e))
    if not ctx.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, wanted.name):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return bare(error_code=ErrorCode.NONE, topic_config_error_code=denied, topic_id=topic_id)
    family, properties = family_and_properties(overrides)
    configs = tuple(
        api.CreatableTopicConfigs(
            name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source
        )
        for entry in topic_entries(ctx.services.settings, properties, family.generation)
    )
    done = partial(result, error_code=ErrorCode.NONE, topic_id=topic_id, configs=configs)
    return done(num_partitions=count, replication_factor=1)


def _placement(wanted: api.CreatableTopic, ctx: Context) -> tuple[int, tuple[int, ...] | None]:
    if wanted.assignments:
        if wanted.num_partitions != _BROKERS_DEFAULT or wanted.replication_factor != _BROKERS_DEFAULT:
            raise InvalidRequest("with an assignment, partition count and replication factor must be -1")
        owners = _assigned_owners(wanted.assignments, live_brokers(ctx))
        return len(owners), owners
    if wanted.replication_factor not in (_BROKERS_DEFAULT, 1):
        alone = "with 1 broker" if len(live_brokers(ctx)) == 1 else "as a partition is on 1 broker,"
        raise ServerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted.replication_factor}; {alone} it can be 1 or -1 only",
        )
    default = wanted.num_partitions == _BROKERS_DEFAULT
    return ctx.services.config.num_partitions if default else wanted.num_partitions, None


def _assigned_owners(
    assignments: tuple[api.CreatableReplicaAssignment, ...], brokers: Collection[int]
) -> tuple[int, ...]:
    in_order = sorted(assignments, key=attrgetter("partition_index"))
    if any(number != each.partition_index for number, each in enumerate(in_order)):
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions must be 0 to their count - 1"
        )
    return _owners_of([each.broker_ids for each in in_order], brokers)


def _overrides(wanted: api.CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for item in wanted.configs:
        if item.value is None:
            raise InvalidConfig(f"topic property {item.name} has no value")
        if item.name in overrides:
            raise InvalidConfig(f"topic property {item.name} is given twice")
        overrides[item.name] = item.value
    return overrides


_BY_ID_SINCE = 6
_DISABLED_SINCE = 3


@handles(
    ApiKey.DELETE_TOPICS, (0, 6), (Operation.DELETE, ResourceType.CLUSTER),
    (Operation.DELETE, ResourceType.TOPIC), (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=always,
)  # fmt: skip
def delete_topics(request: api.DeleteTopicsRequest, ctx: Context) -> api.DeleteTopicsResponse:
    """Delete topics by name, from version 6 also by id, with the offsets that groups stored for them."""
    if ctx.version >= _BY_ID_SINCE:
        wanted = request.topics
    else:
        wanted = tuple(api.DeleteTopicState(name=name) for name in request.topic_names)
    return api.DeleteTopicsResponse(responses=tuple(_delete_topic(topic, ctx) for topic in wanted))


def _delete_topic(wanted: api.DeleteTopicState, ctx: Context) -> api.DeletableTopicResult:
    services = ctx.services
    name, topic_id = wanted.name, wanted.topic_id
    answered = name
    try:
        if not services.config.delete_topic_enable:
            old = ctx.version < _DISABLED_SINCE
            code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
            raise ServerError(code, "delete.topic.enable is false")
        everything = ctx.allows(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
        if name is not None and topic_id != ZERO_UUID:
            raise InvalidRequest("a topic is deleted by its name or by its id, not by both")
        if name is None:
            name = services.topics.name_of(topic_id)
            # Show the name only to clients that may describe the topic.
            answered = name if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, name) else None
        if not everything:
            ctx.demand(Operation.DELETE, ResourceType.TOPIC, name)
        topic_id = services.topics.get(name).topic_id
        services.topics.delete(name, partial(_forget_topic, name, topic_id, ctx))
    except KafkaError as e:
        return api.DeletableTopicResult(
            name=answered, topic_id=wanted.topic_id, error_code=ctx.refused(e), error_message=str(e)
        )
    return api.DeletableTopicResult(name=name, topic_id=topic_id)


def _forget_topic(name: str, topic_id: UUID, ctx: Context) -> None:
    ctx.services.fetches.changed(name)
    ctx.services.groups.offsets.forget_topic(name, topic_id)


@handles(ApiKey.CREATE_PARTITIONS, (0, 3), (Operation.ALTER, ResourceType.TOPIC), takes_long=always)
def create_partitions(request: api.CreatePartitionsRequest, ctx: Context) -> api.CreatePartitionsResponse:
    """Add partitions to topics; ``count`` is the new total. Partitions are never taken away."""
    times = Counter(topic.name for topic in request.topics)
    return api.CreatePartitionsResponse(
        results=tuple(
            _add_partitions(topic, times[topic.name], request.validate_only, ctx)
            for topic in {topic.name: topic for topic in request.topics}.values()
        )
    )


def _add_partitions(
    wanted: api.CreatePartitionsTopic, times: int, validate_only: bool, ctx: Context
) -> api.CreatePartitionsTopicResult:
    topics = ctx.services.topics
    try:
        if times > 1:
            raise InvalidRequest(f"topic {wanted.name!r} is in the request {times} times")
        ctx.demand(Operation.ALTER, ResourceType.TOPIC, wanted.name)
        if wanted.name in INTERNAL_TOPICS:
            # A group's partition depends on the count: with another one its offsets could not be found.
            raise InvalidTopic(f"topic {wanted.name!r} is internal: its partitions cannot be changed")
        present = len(topics.get(wanted.name).partitions)
        owners = _added_owners(wanted, wanted.count - present, ctx)
        topics.add_partitions(wanted.name, wanted.count, owners, validate_only=validate_only)
    except KafkaError as e:
        return api.CreatePartitionsTopicResult(
            name=wanted.name, error_code=ctx.refused(e), error_message=str(e)
        )
    return api.CreatePartitionsTopicResult(name=wanted.name)


def _added_owners(wanted: api.CreatePartitionsTopic, added: int, ctx: Context) -> tuple[int, ...] | None:
    if wanted.assignments is None or added <= 0:
        return None
    if len(wanted.assignments) != added:
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} new partitions need {added} assignments, not {len(wanted.assignments)}",
        )
    return _owners_of([each.broker_ids for each in wanted.assignments], live_brokers(ctx))


def _owners_of(assignments: Sequence[Sequence[int]], brokers: Collection[int]) -> tuple[int, ...]:
    """The broker in each assignment. Raises `ServerError`: one is not of ``brokers``, or has several."""
    if any(len(each) != 1 or each[0] not in brokers for each in assignments):
        names = ", ".join(map(str, sorted(brokers)))
        raise ServerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"each partition can be assigned to one broker, one of those that are there: {names}",
        )
    return tuple(each[0] for each in assignments)
