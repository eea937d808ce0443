"""EndTxn 0-5: commit or abort a transaction.

The answer comes when all markers are written, so a client reads what it has just committed. Where a disk
refuses a marker, or the broker that owns a partition is away, the decision stands, and the next transaction
waits for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kafkalog_broker.server.dispatch import LATER, Context, handles
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.transactions import EndTxnRequest, EndTxnResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType

_OWN_EPOCHS_SINCE = 5


@handles(ApiKey.END_TXN, versions=(0, 5), needs=((Operation.WRITE, ResourceType.TRANSACTIONAL_ID),))
def end_txn(request: EndTxnRequest, ctx: Context) -> Any:
    """Decide it now; in many partitions, and in others' ones, the markers are another thread's work."""
    services = ctx.services
    try:
        if not request.transactional_id:
            raise InvalidRequest("the transactional id is empty")
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ending = services.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            commit=request.committed,
            own_epochs=ctx.version >= _OWN_EPOCHS_SINCE,
        )
    except KafkaError as e:
        return EndTxnResponse(error_code=ctx.refused(e))

    def answer() -> EndTxnResponse:
        return EndTxnResponse(producer_id=ending.producer[0], producer_epoch=ending.producer[1])

    if ending.takes_long:
        services.transaction_work.after(0.0, partial(ending.run, ctx.later(answer)))
        return LATER
    ending.run()
    return answer()
