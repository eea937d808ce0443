"""DescribeCluster 0-1: the cluster's id and its brokers; the one with the smallest id is its controller.

Left out: the addresses of controllers (KRaft's), racks.
"""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.metadata import cluster_operations, live_brokers
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.cluster import (
    BROKERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 1), needs=((Operation.DESCRIBE, ResourceType.CLUSTER),))
def describe_cluster(request: DescribeClusterRequest, ctx: Context) -> DescribeClusterResponse:
    """As Metadata says it, without topics."""
    services = ctx.services
    try:
        if request.endpoint_type != BROKERS:
            raise ServerError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                f"endpoint type {request.endpoint_type} was asked for; this is one of brokers ({BROKERS})",
            )
    except KafkaError as e:
        return DescribeClusterResponse(error_code=ctx.refused(e), error_message=str(e))
    brokers = live_brokers(ctx)
    asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=services.cluster_id,
        controller_id=min(brokers),
        brokers=tuple(
            DescribeClusterBroker(broker_id=number, host=host, port=port)
            for number, (host, port) in brokers.items()
        ),
        cluster_authorized_operations=cluster_operations(ctx) if asked else NOT_ASKED,
    )
