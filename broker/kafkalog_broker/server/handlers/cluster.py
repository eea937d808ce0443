"""The cluster, its brokers' data directories, reassignments, elections, and quotas.

API                         Versions  Left out
--------------------------  --------  ---------------------------------------------
DescribeCluster             0-1       the addresses of controllers (KRaft's), racks
DescribeLogDirs             1-4       nothing
AlterReplicaLogDirs         1-2       nothing
DescribeClientQuotas        0-1       setting any (AlterClientQuotas)
ElectLeaders                0-2       electing: a partition has one copy, whose owner leads it
AlterPartitionReassignments 0-1       moving a partition to another broker
ListPartitionReassignments  0         nothing

* DescribeLogDirs: a directory that is offline has an error and no partitions.
* AlterReplicaLogDirs: partitions are copied one after another. A restart begins an unfinished one again.
* DescribeClientQuotas: the filter is checked as Kafka checks it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import groupby

from kafkalog_broker.cluster.ownership import RegisteredElsewhere
from kafkalog_broker.logs.manager import DirectoryContents
from kafkalog_broker.server.dispatch import Context, always, handles
from kafkalog_broker.server.handlers.metadata import cluster_operations, live_brokers
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api import cluster as api
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED, MetadataResponsePartition
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.types import TopicPartition


@handles(ApiKey.DESCRIBE_CLUSTER, (0, 1), (Operation.DESCRIBE, ResourceType.CLUSTER))
def describe_cluster(request: api.DescribeClusterRequest, ctx: Context) -> api.DescribeClusterResponse:
    """Describe the cluster's id and its brokers; the one with the smallest id is its controller."""
    if request.endpoint_type != api.BROKERS:
        kind = request.endpoint_type
        why = f"endpoint type {kind} was asked for; this is one of brokers ({api.BROKERS})"
        error = ServerError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, why)
        return api.DescribeClusterResponse(error_code=ctx.refused(error), error_message=str(error))
    brokers = live_brokers(ctx)
    asked = request.include_cluster_authorized_operations
    return api.DescribeClusterResponse(
        cluster_id=ctx.services.cluster_id,
        controller_id=min(brokers),
        brokers=tuple(
            api.DescribeClusterBroker(broker_id=number, host=host, port=port)
            for number, (host, port) in brokers.items()
        ),
        cluster_authorized_operations=cluster_operations(ctx) if asked else NOT_ASKED,
    )


@handles(ApiKey.DESCRIBE_LOG_DIRS, (1, 4), (Operation.DESCRIBE, ResourceType.CLUSTER), takes_long=always)
def describe_log_dirs(request: api.DescribeLogDirsRequest, ctx: Context) -> api.DescribeLogDirsResponse:
    """List the data directories, their disks' sizes, and the bytes of each partition in them."""
    if refusal := ctx.denied(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return api.DescribeLogDirsResponse(error_code=ctx.refused(refusal))
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(topic.topic, each) for topic in request.topics for each in topic.partitions}
    return api.DescribeLogDirsResponse(
        results=tuple(map(_describe_directory, ctx.services.logs.directories(wanted)))
    )


def _describe_directory(directory: DirectoryContents) -> api.DescribeLogDirsResult:
    try:
        disk = shutil.disk_usage(directory.path)
        total_bytes, usable_bytes = disk.total, disk.free
    except OSError:
        total_bytes = usable_bytes = -1
    if not directory.online:
        return api.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory.path),
            total_bytes=total_bytes, usable_bytes=usable_bytes,
        )  # fmt: skip
    replicas = [(each, size, 0, False) for each, size in directory.sizes.items()]
    replicas += [(each, size, lag, True) for each, (size, lag) in directory.futures.items()]
    by_topic = groupby(sorted(replicas), key=lambda replica: replica[0].topic)
    return api.DescribeLogDirsResult(
        log_dir=str(directory.path),
        topics=tuple(
            api.DescribeLogDirsTopic(
                name=topic,
                partitions=tuple(
                    api.DescribeLogDirsPartition(each.partition, size, lag, is_future)
                    for each, size, lag, is_future in partitions
                ),
            )
            for topic, partitions in by_topic
        ),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always)
def alter_replica_log_dirs(
    request: api.AlterReplicaLogDirsRequest, ctx: Context
) -> api.AlterReplicaLogDirsResponse:
    """Begin to move partitions to other data directories of this broker; DescribeLogDirs shows the copies."""
    refused = ctx.denied(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    wanted = {
        TopicPartition(topic.name, number): each.path
        for each in request.dirs
        for topic in each.topics
        for number in topic.partitions
    }
    results: dict[str, list[api.AlterReplicaLogDirPartitionResult]] = {}
    for partition, path in wanted.items():
        code = _move(partition, path, refused, ctx)
        results.setdefault(partition.topic, []).append(
            api.AlterReplicaLogDirPartitionResult(partition.partition, code)
        )
    return api.AlterReplicaLogDirsResponse(
        results=tuple(api.AlterReplicaLogDirTopicResult(name, tuple(each)) for name, each in results.items())
    )


def _move(partition: TopicPartition, path: str, refused: KafkaError | None, ctx: Context) -> ErrorCode:
    try:
        if refused is not None:
            raise refused
        ctx.services.logs.move(partition, path)
    except RegisteredElsewhere:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    except KafkaError as e:
        return ctx.refused(e)
    return ErrorCode.NONE


_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_ENTITY_TYPES = ("user", "client-id", "ip")


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER))
def describe_client_quotas(
    request: api.DescribeClientQuotasRequest, ctx: Context
) -> api.DescribeClientQuotasResponse:
    """Return an empty list: this broker has no quotas, so nothing matches."""
    try:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        _check_filter(request.components)
    except KafkaError as e:
        return api.DescribeClientQuotasResponse(error_code=ctx.refused(e), error_message=str(e))
    return api.DescribeClientQuotasResponse(error_message="", entries=())


def _check_filter(components: tuple[api.ComponentData, ...]) -> None:
    seen: set[str] = set()
    for each in components:
        kind = each.entity_type
        if not kind:
            raise InvalidRequest("an entity type is empty")
        if kind not in _ENTITY_TYPES:
            raise UnsupportedVersion(f"entity type {kind!r}; there are {', '.join(_ENTITY_TYPES)}")
        if kind in seen:
            raise InvalidRequest(f"entity type {kind!r} is in the filter more than once")
        seen.add(kind)
        if each.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise InvalidRequest(
                f"match type {each.match_type}; there are exact (0), default (1) and any specified (2)"
            )
        if (each.match is None) == (each.match_type == _EXACT):
            raise InvalidRequest(f"{kind}: a name is given with match type exact (0), and only with that")
    if "ip" in seen and len(seen) > 1:
        raise InvalidRequest("quotas of addresses cannot be combined with those of users or client ids")


@handles(ApiKey.ELECT_LEADERS, (0, 2), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always)
def elect_leaders(request: api.ElectLeadersRequest, ctx: Context) -> api.ElectLeadersResponse:
    """Say of each partition that its leader needs no election, or is away. Of all partitions (null) only
    those are listed whose leader is away, as in Kafka.
    """
    everything = request.topic_partitions is None
    topics = ctx.services.topics.all()
    asked = {each.topic: each.partitions for each in request.topic_partitions or ()}
    if everything:
        asked = {name: topic.partitions for name, topic in topics.items()}
    refused: KafkaError | None = None
    try:
        ctx.demand(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        if request.election_type not in tuple(api.ElectionType):
            raise InvalidRequest(f"election type {request.election_type}; preferred is 0, unclean 1")
    except KafkaError as e:
        refused = e
        asked = {} if everything else asked
    leaders = _Leaders(ctx)
    results = []
    for name, numbers in asked.items():
        partitions = []
        for number in numbers:
            error = refused or leaders.election(name, number, request.election_type)
            if not (everything and error.code is ErrorCode.ELECTION_NOT_NEEDED):
                partitions.append(api.PartitionResult(number, ctx.refused(error), str(error)))
        results.append(api.ReplicaElectionResult(name, tuple(partitions)))
    return api.ElectLeadersResponse(
        error_code=ErrorCode.NONE if refused is None or not ctx.version else refused.code,
        replica_election_results=tuple(results),
    )


class _Leaders:
    """*Not thread-safe: one request's.* The partitions' owners, as the clients of a listener see them."""

    def __init__(self, ctx: Context) -> None:
        self._topics = ctx.services.topics.all()
        self._cache = ctx.services.metadata_cache
        self._brokers = frozenset(live_brokers(ctx))
        self._described: dict[str, Mapping[int, MetadataResponsePartition]] = {}

    def partition(self, name: str, number: int) -> MetadataResponsePartition:
        if name not in self._described and name in self._topics:
            topic = self._cache.described(name, self._topics[name], NOT_ASKED, self._brokers)
            self._described[name] = {each.partition_index: each for each in topic.partitions}
        try:
            return self._described[name][number]
        except KeyError:
            raise UnknownTopicOrPartition(f"{TopicPartition(name, number)} does not exist") from None

    def election(self, name: str, number: int, kind: int) -> KafkaError:
        """The result of an election, of which none ever succeeds."""
        partition = TopicPartition(name, number)
        try:
            leader = self.partition(name, number).leader_id
        except UnknownTopicOrPartition as e:
            return e
        if leader >= 0:
            return ServerError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {leader} leads {partition}")
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if kind == api.ElectionType.UNCLEAN:
            code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return ServerError(code, f"the broker with the only copy of {partition} is away")


@handles(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always
)
def alter_partition_reassignments(
    request: api.AlterPartitionReassignmentsRequest, ctx: Context
) -> api.AlterPartitionReassignmentsResponse:
    """Accept what is so already. A partition is never moved, so there is nothing to cancel either."""
    refused = ctx.denied(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    leaders = _Leaders(ctx)
    return api.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE if refused is None else ctx.refused(refused),
        error_message=None if refused is None else str(refused),
        responses=tuple(
            api.ReassignableTopicResponse(
                topic.name,
                tuple(_reassign(topic.name, each, refused, leaders, ctx) for each in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _reassign(
    name: str, wanted: api.ReassignablePartition, refused: KafkaError | None, leaders: _Leaders, ctx: Context
) -> api.ReassignablePartitionResponse:
    number = wanted.partition_index
    try:
        if refused is not None:
            raise refused
        replicas = leaders.partition(name, number).replica_nodes
        if wanted.replicas is None:
            raise ServerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
        if wanted.replicas != replicas:
            raise ServerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{TopicPartition(name, number)} has one copy and cannot be moved: its replicas are "
                f"{list(replicas)}, not {list(wanted.replicas)}",
            )
    except KafkaError as e:
        return api.ReassignablePartitionResponse(number, ctx.refused(e), str(e))
    return api.ReassignablePartitionResponse(number, ErrorCode.NONE, None)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), (Operation.DESCRIBE, ResourceType.CLUSTER))
def list_partition_reassignments(
    request: api.ListPartitionReassignmentsRequest,  # noqa: ARG001
    ctx: Context,
) -> api.ListPartitionReassignmentsResponse:
    """Return an empty list: no partition is ever being moved."""
    if refusal := ctx.denied(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return api.ListPartitionReassignmentsResponse(
            error_code=ctx.refused(refusal), error_message=str(refusal)
        )
    return api.ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE)
