"""What a client asks first: APIs, brokers, topics, coordinators.

API                      Versions  Left out
-----------------------  --------  ------------------
ApiVersions              0-4       nothing
Metadata                 0-12      replicas and racks
DescribeTopicPartitions  0         nothing
FindCoordinator          0-4       share groups

* ApiVersions: an unknown version is answered in version 0, as every client expects. The only feature is
  ``transaction.version`` 2: Produce 12, TxnOffsetCommit 5 and EndTxn 5 together (KIP-890).
* Metadata: a request for an unknown topic creates it if ``auto.create.topics.enable`` and, from version 4,
  the request allow it. Topics of 0.7 are described like all others: after an error here a client would only
  ask again, and never report it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from kafkalog_broker.cluster.ownership import RegisteredElsewhere
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.server.dispatch import MANY, REGISTRY, Context, always, handles
from pyspark_kafkalog.errors import (
    CoordinatorLoading,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    ServerError,
    StorageError,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.protocol.api import metadata as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_TRANSACTION_VERSION = "transaction.version"


@handles(
    ApiKey.API_VERSIONS,
    (0, 4),
    unknown_version=lambda: api.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served_versions()
    ),
)
def api_versions(request: api.ApiVersionsRequest, ctx: Context) -> api.ApiVersionsResponse:
    """List the APIs that this broker serves, with their versions.

    From version 3 the client must name itself in legal characters (KIP-511).
    """
    named = _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    if ctx.version >= 3 and not named:
        return api.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return api.ApiVersionsResponse(
        api_keys=_served_versions(),
        supported_features=(api.SupportedFeatureKey(_TRANSACTION_VERSION, 1, 2),),
        finalized_features_epoch=0,
        finalized_features=(api.FinalizedFeatureKey(_TRANSACTION_VERSION, 2, 2),),
    )


def _served_versions() -> tuple[api.ApiVersion, ...]:
    return tuple(
        api.ApiVersion(api_key=int(entry.key), min_version=entry.versions[0], max_version=entry.versions[1])
        for entry in sorted(REGISTRY.values(), key=lambda entry: entry.key)
    )


_FEW = 100
_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Kafka's ``AclOperation`` numbers as bits: all operations, allowed without an authorizer."""


def cluster_operations(ctx: Context) -> int:
    """The client's permitted operations on the cluster, as bits; 0 if it may not describe it."""
    if not ctx.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return ctx.operations(_CLUSTER_OPERATIONS, ResourceType.CLUSTER, CLUSTER_NAME)


def live_brokers(ctx: Context) -> dict[int, tuple[str, int]]:
    """The brokers that clients of this listener can reach, in ascending order, with their addresses."""
    services = ctx.services
    found = {services.config.node_id: services.endpoint()}
    if services.ownership is not None:
        found |= services.ownership.live(ctx.session.listener)
    return dict(sorted(found.items()))


def _metadata_takes_long(request: api.MetadataRequest, ctx: Context) -> bool:
    known, wanted = ctx.services.topics.all(), request.topics or ()
    return len(wanted or known) > _FEW or any(
        topic.name is not None and topic.name not in known for topic in wanted
    )


@handles(
    ApiKey.METADATA, (0, 12), (Operation.DESCRIBE, ResourceType.TOPIC),
    (Operation.CREATE, ResourceType.CLUSTER), (Operation.CREATE, ResourceType.TOPIC),
    (Operation.DESCRIBE, ResourceType.CLUSTER), takes_long=_metadata_takes_long,
)  # fmt: skip
def metadata(request: api.MetadataRequest, ctx: Context) -> api.MetadataResponse:
    """Describe the live brokers of the cluster, and its topics by name or by id (responses from version 10,
    requests from 12). Every broker answers for all; the one with the smallest id is the controller. A
    partition is led by its owner, and has no leader while that is away; the leader epoch counts owners. A
    topic that the request creates has its partitions in the answer; Kafka first answers 3, and creates
    meanwhile.
    """
    services = ctx.services
    brokers = live_brokers(ctx)
    ids = frozenset(brokers)
    everything = request.topics is None or (ctx.version == 0 and not request.topics)
    topics: list[api.MetadataResponseTopic | api.CachedTopic] = []
    if everything or request.topics is None:
        for name, topic in services.topics.all().items():
            if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                operations = _topic_operations(name, request, ctx)
                topics.append(services.metadata_cache.of(name, topic, ctx.version, operations, ids))
    else:
        for wanted in dict.fromkeys(request.topics):  # each once, as in Kafka: an answer may be long
            topics.append(_describe_topic(wanted, request, ctx, ids))
    return api.MetadataResponse(
        brokers=tuple(
            api.MetadataResponseBroker(node_id=number, host=host, port=port)
            for number, (host, port) in brokers.items()
        ),
        cluster_id=services.cluster_id,
        controller_id=min(brokers),
        topics=cast("tuple[api.MetadataResponseTopic, ...]", tuple(topics)),  # cached ones encode the same
        cluster_authorized_operations=(
            cluster_operations(ctx) if request.include_cluster_authorized_operations else api.NOT_ASKED
        ),
    )


def _describe_topic(
    wanted: api.MetadataRequestTopic, request: api.MetadataRequest, ctx: Context, brokers: frozenset[int]
) -> api.MetadataResponseTopic | api.CachedTopic:
    try:
        name, topic = _find_topic(wanted, request, ctx)
    except KafkaError as e:
        name_or_none = wanted.name if wanted.name is not None or ctx.version >= 12 else ""
        return api.MetadataResponseTopic(
            error_code=ctx.refused(e),
            name=name_or_none,
            topic_id=wanted.topic_id,
            is_internal=wanted.name in INTERNAL_TOPICS and e.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    operations = _topic_operations(name, request, ctx)
    return ctx.services.metadata_cache.of(name, topic, ctx.version, operations, brokers)


def _topic_operations(name: str, request: api.MetadataRequest, ctx: Context) -> int:
    if not request.include_topic_authorized_operations:
        return api.NOT_ASKED
    return ctx.operations(_TOPIC_OPERATIONS, ResourceType.TOPIC, name)


def _find_topic(
    wanted: api.MetadataRequestTopic, request: api.MetadataRequest, ctx: Context
) -> tuple[str, StoredTopic]:
    services = ctx.services
    topics = services.topics
    if wanted.name is None or wanted.topic_id != ZERO_UUID:
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
    return wanted.name, topics.get_or_create(wanted.name)


_MOST_PARTITIONS = 2_000
"""Of one response; Kafka's ``max.request.partition.size.limit``."""


@handles(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=always
)
def describe_topic_partitions(
    request: api.DescribeTopicPartitionsRequest, ctx: Context
) -> api.DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, up to a number of partitions; a cursor names the first of
    the next response. Topics that are unknown, or may not be described, come last.
    """
    topics, cursor = ctx.services.topics.all(), request.cursor or api.Cursor("", 0)
    names = sorted({topic.name for topic in request.topics} or topics)
    strange = request.cursor is not None and request.topics and cursor.topic_name not in names
    if strange or cursor.partition_index < 0:
        code = ctx.refused(InvalidRequest(f"{cursor} is in none of the topics"))
        return api.DescribeTopicPartitionsResponse(
            topics=tuple(
                api.DescribeTopicPartitionsResponseTopic(error_code=code, name=name) for name in names
            )
        )
    left = max(1, min(request.response_partition_limit, _MOST_PARTITIONS))
    brokers = frozenset(live_brokers(ctx))
    described, failed = [], []
    following: api.Cursor | None = None
    for name in (name for name in names if name >= cursor.topic_name):
        operations = api.NOT_ASKED
        try:
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
            operations = ctx.operations(_TOPIC_OPERATIONS, ResourceType.TOPIC, name)
            if name not in topics:
                ctx.services.logs.family.check_name(name, ())
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        except KafkaError as e:
            if request.topics:
                failed.append(
                    api.DescribeTopicPartitionsResponseTopic(
                        error_code=ctx.refused(e), name=name, topic_authorized_operations=operations
                    )
                )
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        if not left:
            following = api.Cursor(name, first)
            break
        topic = ctx.services.metadata_cache.described(name, topics[name], operations, brokers)
        partitions = [each for each in topic.partitions if each.partition_index >= first]
        described.append(_paged(topic, partitions[:left]))
        if len(partitions) > left:
            following = api.Cursor(name, partitions[left].partition_index)
            break
        left -= len(partitions)
    return api.DescribeTopicPartitionsResponse(topics=(*described, *failed), next_cursor=following)


def _paged(
    topic: api.MetadataResponseTopic, partitions: Sequence[api.MetadataResponsePartition]
) -> api.DescribeTopicPartitionsResponseTopic:
    return api.DescribeTopicPartitionsResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            api.DescribeTopicPartitionsResponsePartition(
                error_code=each.error_code,
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=each.offline_replicas,
            )
            for each in partitions
        ),
        topic_authorized_operations=topic.topic_authorized_operations,
    )


_SEVERAL_KEYS_SINCE = 4


def _find_coordinator_takes_long(request: api.FindCoordinatorRequest, ctx: Context) -> bool:
    services = ctx.services
    keeper = services.groups if request.key_type == api.CoordinatorType.GROUP else services.transactions
    return not keeper.opened or len(request.coordinator_keys) > MANY


@handles(
    ApiKey.FIND_COORDINATOR, (0, 4), (Operation.DESCRIBE, ResourceType.GROUP),
    (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID), takes_long=_find_coordinator_takes_long,
)  # fmt: skip
def find_coordinator(request: api.FindCoordinatorRequest, ctx: Context) -> api.FindCoordinatorResponse:
    """Return the owner of the partition of ``__consumer_offsets`` that keeps the group, or of the partition
    of ``__transaction_state`` that keeps the transactional id.
    """
    if ctx.version >= _SEVERAL_KEYS_SINCE:
        return api.FindCoordinatorResponse(
            coordinators=tuple(_find_coordinator(k, request.key_type, ctx) for k in request.coordinator_keys)
        )
    one = _find_coordinator(request.key, request.key_type, ctx)
    return api.FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host,
        port=one.port,
    )  # fmt: skip


def _find_coordinator(key: str, key_type: int, ctx: Context) -> api.Coordinator:
    services = ctx.services
    number, brokers = services.config.node_id, live_brokers(ctx)
    try:
        if key_type not in (api.CoordinatorType.GROUP, api.CoordinatorType.TRANSACTION):
            raise InvalidRequest(
                f"key type {key_type}: this broker coordinates groups (0) and transactions (1) only"
            )
        kind = ResourceType.GROUP if key_type == api.CoordinatorType.GROUP else ResourceType.TRANSACTIONAL_ID
        ctx.demand(Operation.DESCRIBE, kind, key)
        keeper = services.groups if key_type == api.CoordinatorType.GROUP else services.transactions
        if services.offset_migration is not None and key_type == api.CoordinatorType.GROUP:
            services.offset_migration.check_tried(key)
        try:
            if not keeper.opened:
                keeper.open()  # in a cluster it asks ZooKeeper
            partition = keeper.partition_of(key)
            if services.ownership is not None:
                number = services.ownership.owner_of(partition)
                if number == services.config.node_id:
                    services.ownership.check(partition)
        except (StorageError, CoordinatorLoading, RegisteredElsewhere) as e:
            # Clients retry after this code, but not after a storage error.
            raise ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e
        if number not in brokers:
            raise ServerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {number}, who coordinates {key!r}, is away"
            )
    except KafkaError as e:
        return api.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=ctx.refused(e), error_message=str(e)
        )
    host, port = brokers[number]
    return api.Coordinator(key=key, node_id=number, host=host, port=port)
