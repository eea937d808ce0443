"""Describe the cluster, its brokers' data directories, and quotas.

API                   Versions  Left out
--------------------  --------  ---------------------------------------------
DescribeCluster       0-1       the addresses of controllers (KRaft's), racks
DescribeLogDirs       1-4       nothing
DescribeClientQuotas  0-1       setting any (AlterClientQuotas)

* DescribeLogDirs: a directory that is offline has an error and no partitions. Replicas are never moved
  between directories.
* DescribeClientQuotas: the filter is checked as Kafka checks it.
"""

from __future__ import annotations

import shutil
from itertools import groupby
from operator import attrgetter

from kafkalog_broker.logs.manager import DirectoryContents
from kafkalog_broker.server.dispatch import Context, always, handles
from kafkalog_broker.server.handlers.metadata import cluster_operations, live_brokers
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError, UnsupportedVersion
from pyspark_kafkalog.protocol.api import cluster as api
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
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
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return api.DescribeLogDirsResponse(error_code=ctx.refused(e))
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
    by_topic = groupby(sorted(directory.sizes), key=attrgetter("topic"))
    return api.DescribeLogDirsResult(
        log_dir=str(directory.path),
        topics=tuple(
            api.DescribeLogDirsTopic(
                name=topic,
                partitions=tuple(
                    api.DescribeLogDirsPartition(
                        partition_index=each.partition, partition_size=directory.sizes[each]
                    )
                    for each in partitions
                ),
            )
            for topic, partitions in by_topic
        ),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


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
