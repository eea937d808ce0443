"""WriteTxnMarkers 1: another broker, or an administrator, ends a transaction in partitions of ours.

Writing a marker twice is harmless; one of an epoch before the producer's present one is refused.
"""

from __future__ import annotations

from functools import partial

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition


@handles(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 1),
    needs=((Operation.ALTER, ResourceType.CLUSTER), (Operation.CLUSTER_ACTION, ResourceType.CLUSTER)),
)
def write_txn_markers(request: WriteTxnMarkersRequest, ctx: Context) -> Steps[WriteTxnMarkersResponse]:
    """A code for each partition; the others' markers are written all the same."""
    results = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            codes = []
            for number in topic.partition_indexes:
                code = yield from _write(marker, TopicPartition(topic.name, number), ctx)
                codes.append(WritableTxnMarkerPartitionResult(number, code))
            topics.append(WritableTxnMarkerTopicResult(topic.name, tuple(codes)))
        results.append(WritableTxnMarkerResult(marker.producer_id, tuple(topics)))
    return WriteTxnMarkersResponse(tuple(results))


def _write(marker: WritableTxnMarker, partition: TopicPartition, ctx: Context) -> Steps[ErrorCode]:
    services = ctx.services
    try:
        if not ctx.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            ctx.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        services.logs.log(partition)
        write = partial(
            services.transactions.markers.write_here,
            partition,
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
        )
        if services.config.transaction_flush_before_end:
            yield write  # the disk may take its time
        else:
            write()
            yield None
    except KafkaError as e:
        return ctx.refused(e)
    return ErrorCode.NONE
