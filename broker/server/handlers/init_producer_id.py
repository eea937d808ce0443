"""InitProducerId 0-5: a producer id and epoch.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, also when it names the
one it had. With one it fences who had the id before, and whose transaction is aborted first.
"""

from __future__ import annotations

from broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_NONE = -1


@handles(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    needs=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        (Operation.WRITE, ResourceType.TOPIC),
    ),
)
def init_producer_id(request: InitProducerIdRequest, ctx: Context) -> Steps[InitProducerIdResponse]:
    """The id and epoch; CONCURRENT_TRANSACTIONS where the client is to ask again."""
    services = ctx.services
    transactional_id = request.transactional_id
    if transactional_id is None:
        try:
            _check_idempotent(ctx)
        except KafkaError as e:
            return _failed(ctx.refused(e))
        try:
            return InitProducerIdResponse(producer_id=services.producer_ids.next(), producer_epoch=0)
        except KafkaError as e:
            ctx.refused(e)
            # As Kafka where it has no ids to give: the one code after which every client asks again.
            return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        if not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        has = (request.producer_id, request.producer_epoch)
        if (has[0] == _NONE) != (has[1] == _NONE):
            raise InvalidRequest(f"{transactional_id!r}: producer {has[0]} with epoch {has[1]}")
        if not services.transactions.opened:
            yield services.transactions.open  # in a cluster it asks ZooKeeper
        producer_id, epoch = services.transactions.initialize(
            transactional_id, request.transaction_timeout_ms, None if has[0] == _NONE else has
        )
    except KafkaError as e:
        return _failed(ctx.refused(e))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _check_idempotent(ctx: Context) -> None:
    """Who may write to any topic at all may do it with a producer id."""
    if not (
        ctx.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        or ctx.allows_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        ctx.demand(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
