"""InitProducerId 0-4: a fresh producer id for an idempotent producer.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, also when it names the
one it had. Left out: transactional ids.
"""

from __future__ import annotations

from broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.protocol.exchange import ApiKey


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 4))
def init_producer_id(request: InitProducerIdRequest, ctx: Context) -> InitProducerIdResponse:
    """A new id; INVALID_REQUEST for a transactional id, which no client retries."""
    if request.transactional_id is not None:
        return _failed(ErrorCode.INVALID_REQUEST)
    try:
        return InitProducerIdResponse(producer_id=ctx.services.producer_ids.next(), producer_epoch=0)
    except KafkaError as e:
        ctx.refused(e)
        # As Kafka where it has no ids to give: the one code after which every client asks again.
        return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
