"""AddPartitionsToTxn 0-4: the partitions that a transaction is about to write to; all of them, or none.

Version 4 is for brokers: before they append to a partition they ask whether a transaction has it, or have it
taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_BROKERS_SINCE = 4
_A_STEP = 100
"""So many partitions are looked at between two turns of others."""


@handles(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 4),
    needs=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.WRITE, ResourceType.TOPIC),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)
def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, ctx: Context
) -> Steps[AddPartitionsToTxnResponse]:
    """Where one cannot be written to, it has its error, and the others OPERATION_NOT_ATTEMPTED."""
    if ctx.version >= _BROKERS_SINCE:
        return (yield from _for_brokers(request.transactions, ctx))
    services, topics = ctx.services, request.v3_and_below_topics
    codes: dict[TopicPartition, ErrorCode] = {}
    try:
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    except KafkaError as e:
        return _response(topics, defaultdict(partial(ErrorCode, ctx.refused(e))))
    for partition in _named(topics):
        try:
            ctx.demand(Operation.WRITE, ResourceType.TOPIC, partition.topic)
            services.logs.check_writable(partition)
            codes[partition] = ErrorCode.NONE
        except KafkaError as e:
            codes[partition] = ctx.refused(e)
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
    return _response(topics, codes)


def _for_brokers(
    transactions: Iterable[AddPartitionsToTxnTransaction], ctx: Context
) -> Steps[AddPartitionsToTxnResponse]:
    try:
        ctx.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return AddPartitionsToTxnResponse(error_code=ctx.refused(e))
    results = []
    for each in transactions:
        codes = _checked(each, ctx) if each.verify_only else _added(each, ctx)
        results.append(AddPartitionsToTxnResult(each.transactional_id, _by_topic(each.topics, codes)))
        yield None
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


def _checked(wanted: AddPartitionsToTxnTransaction, ctx: Context) -> Mapping[TopicPartition, ErrorCode]:
    partitions = _named(wanted.topics)
    try:
        found = ctx.services.transactions.check(
            wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, partitions
        )
    except KafkaError as e:
        return dict.fromkeys(partitions, ctx.refused(e))
    return {each: ErrorCode.NONE if error is None else ctx.refused(error) for each, error in found.items()}


def _added(wanted: AddPartitionsToTxnTransaction, ctx: Context) -> Mapping[TopicPartition, ErrorCode]:
    partitions, code = _named(wanted.topics), ErrorCode.NONE
    try:
        ctx.services.transactions.add(
            wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, partitions
        )
    except KafkaError as e:
        code = ctx.refused(e)
    return dict.fromkeys(partitions, code)


def _named(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _response(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(topics, codes))


def _by_topic(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
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
        for topic in topics
    )
