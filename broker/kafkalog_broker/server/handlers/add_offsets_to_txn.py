"""AddOffsetsToTxn 0-4: the offsets of a group are to change with a transaction."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    needs=((Operation.WRITE, ResourceType.TRANSACTIONAL_ID), (Operation.READ, ResourceType.GROUP)),
)
def add_offsets_to_txn(request: AddOffsetsToTxnRequest, ctx: Context) -> Steps[AddOffsetsToTxnResponse]:
    """The transaction gets the partition of the offsets topic that keeps the group's."""
    services = ctx.services
    try:
        if not request.transactional_id:
            raise InvalidRequest("the transactional id is empty")
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        if not services.groups.opened:
            yield services.groups.open  # it asks ZooKeeper
        services.transactions.add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [services.groups.partition_of(request.group_id)],
        )
    except KafkaError as e:
        return AddOffsetsToTxnResponse(error_code=ctx.refused(e))
    return AddOffsetsToTxnResponse()
