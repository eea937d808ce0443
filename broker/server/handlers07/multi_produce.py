"""MULTIPRODUCE: several produces, done in their order. There is no answer.

The first part that ends the connection is the last: what came before it stays appended, what follows is lost.
"""

from __future__ import annotations

from broker.server.allowance import TimeAllowance
from broker.server.context import Services
from broker.server.handlers07.produce import append
from broker.server.request_width import COSTLY_ELEMENTS
from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.v07 import MultiProduceRequest, RequestType
from pyspark_kafkalog.steps import Steps


def multi_produce(request: MultiProduceRequest, services: Services) -> Steps[None]:
    """Append each part, a part that is only too large left out.

    Raises:
        InvalidRequest: so many topics would have to be made that others would wait for long; nothing is done.
        KafkaError: as `append` for one of the parts; or they take so long that no more is begun.
    """
    unknown = {part.topic for part in request.produces}.difference(services.topics.all())
    if len(unknown) > COSTLY_ELEMENTS:
        raise InvalidRequest(f"MULTIPRODUCE to {len(unknown)} new topics; the limit is {COSTLY_ELEMENTS}")
    time = TimeAllowance(services.clock)
    for part in request.produces:
        time.check()
        yield from append(part, services, RequestType.MULTIPRODUCE)
        yield None
