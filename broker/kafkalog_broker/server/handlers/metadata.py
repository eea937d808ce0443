"""Metadata 0-12: the brokers of the cluster that are there, and its topics by name or by id (10+/12).

Asking for an unknown topic makes it where ``auto.create.topics.enable`` and the request (4+) allow. Topics
of 0.7 are described like all others: a client that gets an error here only asks again, and never hears why.
Left out: replicas and racks; a partition is led by its owner, with leader epoch 0, and has no leader while
that one is away. Every broker answers for all, the one with the smallest id as the controller.
"""

from __future__ import annotations

from typing import cast
from uuid import UUID

from kafkalog_broker.offsets.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.store.topic_store import StoredTopic
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.protocol.api.metadata import (
    NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
    WrittenTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps, run_steps

_NO_ID = UUID(int=0)
_FEW = 100
_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Kafka's ``AclOperation`` numbers as bits: all that can be done, and without an authorizer may be done."""


def cluster_operations(ctx: Context) -> int:
    """What the client may do with the cluster, as bits; nothing is shown to who may not describe it."""
    if not ctx.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return ctx.operations(_CLUSTER_OPERATIONS, ResourceType.CLUSTER, CLUSTER_NAME)


def live_brokers(ctx: Context) -> dict[int, tuple[str, int]]:
    """The brokers that clients of this listener can reach, ascending, with the addresses for them."""
    services = ctx.services
    found = {services.config.node_id: services.endpoint()}
    if services.ownership is not None:
        found |= services.ownership.live(ctx.session.listener)
    return dict(sorted(found.items()))


def _operations(name: str, request: MetadataRequest, ctx: Context) -> int:
    if not request.include_topic_authorized_operations:
        return NOT_ASKED
    return ctx.operations(_TOPIC_OPERATIONS, ResourceType.TOPIC, name)


@handles(
    ApiKey.METADATA,
    versions=(0, 12),
    needs=(
        (Operation.DESCRIBE, ResourceType.TOPIC),
        (Operation.CREATE, ResourceType.CLUSTER),
        (Operation.CREATE, ResourceType.TOPIC),
        (Operation.DESCRIBE, ResourceType.CLUSTER),
    ),
)
def metadata(request: MetadataRequest, ctx: Context) -> MetadataResponse | Steps[MetadataResponse]:
    """The broker and the topics asked for; one bad topic does not fail the others.

    In steps where a topic may have to be made, or there are many: that takes time, the rest does not.
    """
    known = ctx.services.topics.all()
    wanted = request.topics or ()
    answering = _in_steps(request, ctx)
    if len(wanted or known) <= _FEW and all(topic.name is None or topic.name in known for topic in wanted):
        return run_steps(answering)
    return answering


def _in_steps(request: MetadataRequest, ctx: Context) -> Steps[MetadataResponse]:
    services = ctx.services
    brokers = live_brokers(ctx)
    ids = frozenset(brokers)
    everything = request.topics is None or (ctx.version == 0 and not request.topics)
    topics: list[MetadataResponseTopic | WrittenTopic] = []
    if everything or request.topics is None:
        for name, topic in services.topics.all().items():
            if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                operations = _operations(name, request, ctx)
                topics.append(services.written_topics.of(name, topic, ctx.version, operations, ids))
            yield None
    else:
        for wanted in dict.fromkeys(request.topics):  # a set, as in Kafka: an answer may be long
            topics.append((yield from _answer(wanted, request, ctx, ids)))
            yield None
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=number, host=host, port=port)
            for number, (host, port) in brokers.items()
        ),
        cluster_id=services.cluster_id,
        controller_id=min(brokers),
        topics=cast("tuple[MetadataResponseTopic, ...]", tuple(topics)),  # written ones are as good
        cluster_authorized_operations=(
            cluster_operations(ctx) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _answer(
    wanted: MetadataRequestTopic, request: MetadataRequest, ctx: Context, brokers: frozenset[int]
) -> Steps[MetadataResponseTopic | WrittenTopic]:
    try:
        name, topic = yield from _find(wanted, request, ctx)
    except KafkaError as e:
        name_or_none = wanted.name if wanted.name is not None or ctx.version >= 12 else ""
        return MetadataResponseTopic(
            error_code=ctx.refused(e),
            name=name_or_none,
            topic_id=wanted.topic_id,
            is_internal=wanted.name in INTERNAL_TOPICS and e.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    operations = _operations(name, request, ctx)
    return ctx.services.written_topics.of(name, topic, ctx.version, operations, brokers)


def _find(
    wanted: MetadataRequestTopic, request: MetadataRequest, ctx: Context
) -> Steps[tuple[str, StoredTopic]]:
    services = ctx.services
    topics = services.topics
    if wanted.name is None or wanted.topic_id != _NO_ID:
        if ctx.version < 12:
            raise InvalidRequest("topics are asked for by id from Metadata version 12 only")
        name = topics.name_of(wanted.topic_id)
        ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
        return name, topics.get(name)
    ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, wanted.name)
    create = services.config.auto_create_topics_enable
    if ctx.version >= 4:
        create = create and request.allow_auto_topic_creation
    try:
        return wanted.name, topics.get(wanted.name)
    except UnknownTopicOrPartition:
        services.logs.family.check_name(wanted.name, ())
        if not create or wanted.name in INTERNAL_TOPICS:
            raise
    if not ctx.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        ctx.demand(Operation.CREATE, ResourceType.TOPIC, wanted.name)
    return wanted.name, (yield from topics.getting_or_creating(wanted.name))
