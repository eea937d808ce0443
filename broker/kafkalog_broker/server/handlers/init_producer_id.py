"""InitProducerId 0-5: a producer id and epoch.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, also when it names the
one it had. With one it fences who had the id before, and whose transaction is aborted first.
"""

from __future__ import annotations

from typing import Any

from kafkalog_broker.server.dispatch import LATER, Context, handles
from kafkalog_broker.transaction.producer_ids import NoProducerId
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest, InitProducerIdResponse
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
def init_producer_id(request: InitProducerIdRequest, ctx: Context) -> Steps[Any]:
    """The id and epoch; CONCURRENT_TRANSACTIONS where the client is to ask again. Where no id is at hand the
    request waits for the next block of them, and keeps nobody else waiting.
    """
    services = ctx.services
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            _check_idempotent(ctx)
        elif not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        else:
            ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
            has = (request.producer_id, request.producer_epoch)
            if (has[0] == _NONE) != (has[1] == _NONE):
                raise InvalidRequest(f"{transactional_id!r}: producer {has[0]} with epoch {has[1]}")
            if not services.transactions.opened:
                yield services.transactions.open  # in a cluster it asks ZooKeeper
        return _initialized(request, ctx)
    except NoProducerId:
        services.producer_ids.reserve(ctx.later(lambda: _initialized_or_failed(request, ctx)))
        return LATER
    except KafkaError as e:
        return _failed(ctx.refused(e))


def _initialized(request: InitProducerIdRequest, ctx: Context) -> InitProducerIdResponse:
    services = ctx.services
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=services.producer_ids.next(), producer_epoch=0)
    has = (request.producer_id, request.producer_epoch)
    producer_id, epoch = services.transactions.initialize(
        request.transactional_id, request.transaction_timeout_ms, None if has[0] == _NONE else has
    )
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _initialized_or_failed(request: InitProducerIdRequest, ctx: Context) -> InitProducerIdResponse:
    try:
        return _initialized(request, ctx)
    except KafkaError as e:
        return _failed(ctx.refused(e))


def _check_idempotent(ctx: Context) -> None:
    """Who may write to any topic at all may do it with a producer id."""
    if not (
        ctx.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        or ctx.allows_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        ctx.demand(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
