"""DescribeTransactions 0: transactional ids with their state, producer and partitions."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.transaction.states import STATE_NAMES
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    needs=((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID), (Operation.DESCRIBE, ResourceType.TOPIC)),
)
def describe_transactions(
    request: DescribeTransactionsRequest, ctx: Context
) -> Steps[DescribeTransactionsResponse]:
    """One for each id, named once or more; TRANSACTIONAL_ID_NOT_FOUND for an unknown one."""
    found = []
    for each in dict.fromkeys(request.transactional_ids):
        found.append(_describe(each, ctx))
        yield None
    return DescribeTransactionsResponse(transaction_states=tuple(found))


def _describe(transactional_id: str, ctx: Context) -> TransactionState:
    try:
        if not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        ctx.demand(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        known = ctx.services.transactions.find(transactional_id)
    except KafkaError as e:
        return TransactionState(error_code=ctx.refused(e), transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, number, *_ in known.partitions:
        topics.setdefault(topic, []).append(number)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[known.state],
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in sorted(topics.items())
            if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ),
    )
