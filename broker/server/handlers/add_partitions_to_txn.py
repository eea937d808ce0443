"""AddPartitionsToTxn 0-3: the partitions that a transaction is about to write to; all of them, or none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from broker.cluster.ownership import RegisteredElsewhere
from broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_A_STEP = 100
"""So many partitions are looked at between two turns of others."""


@handles(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 3),
    needs=((Operation.WRITE, ResourceType.TRANSACTIONAL_ID), (Operation.WRITE, ResourceType.TOPIC)),
)
def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, ctx: Context
) -> Steps[AddPartitionsToTxnResponse]:
    """Where one cannot be written to, it has its error, and the others OPERATION_NOT_ATTEMPTED."""
    services = ctx.services
    codes: dict[TopicPartition, ErrorCode] = {}
    try:
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    except KafkaError as e:
        return _response(request, defaultdict(partial(ErrorCode, ctx.refused(e))))
    for topic in request.v3_and_below_topics:
        for number in topic.partitions:
            partition, code = TopicPartition(topic.name, number), ErrorCode.NONE
            try:
                ctx.demand(Operation.WRITE, ResourceType.TOPIC, topic.name)
                services.logs.log(partition)
            except RegisteredElsewhere as e:
                # Brokers do not end transactions for each other yet: clients must not try for ever.
                code = ctx.refused(ServerError(ErrorCode.INVALID_TXN_STATE, str(e)))
            except KafkaError as e:
                code = ctx.refused(e)
            codes[partition] = code
            if not len(codes) % _A_STEP:
                yield None
    if any(codes.values()):
        codes = {each: code or ErrorCode.OPERATION_NOT_ATTEMPTED for each, code in codes.items()}
    else:
        try:
            if not request.v3_and_below_transactional_id:
                raise InvalidRequest("the transactional id is empty")
            services.transactions.add(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                codes,
            )
        except KafkaError as e:
            codes = dict.fromkeys(codes, ctx.refused(e))
    return _response(request, codes)


def _response(
    request: AddPartitionsToTxnRequest, codes: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=codes[TopicPartition(topic.name, number)],
                    )
                    for number in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        )
    )
