"""ListTransactions 0-1: all transactional ids, or those in some states, of some producers, open for long."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.transaction.states import PREPARED, STATE_NAMES, State
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_OPEN = (State.ONGOING, *PREPARED)


@handles(
    ApiKey.LIST_TRANSACTIONS, versions=(0, 1), needs=((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),)
)
def list_transactions(request: ListTransactionsRequest, ctx: Context) -> Steps[ListTransactionsResponse]:
    """By name. States that do not exist are named in the answer, and match nothing."""
    now_ms = ctx.services.clock.time_ms()
    wanted, producers = set(request.state_filters), set(request.producer_id_filters)
    try:
        known = ctx.services.transactions.all()
    except KafkaError as e:
        return ListTransactionsResponse(error_code=ctx.refused(e))
    yield None
    return ListTransactionsResponse(
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in STATE_NAMES.values()
        ),
        transaction_states=tuple(
            ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=STATE_NAMES[each.state],
            )
            for each in known
            if ctx.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
            and (not wanted or STATE_NAMES[each.state] in wanted)
            and (not producers or each.producer_id in producers)
            and (
                request.duration_filter < 0
                or (each.state in _OPEN and now_ms - each.started_ms > request.duration_filter)
            )
        ),
    )
