"""The five requests of Kafka 0.7, each in a file of its own: the folder is the list of what is answered.

A handler gets a request and the broker's parts. It returns an answer, or None where the protocol has none;
what it raises closes the connection, which is all that 0.7's clients are ever told. One that may take long is
a generator (`pyspark_kafkalog.steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from broker.server.context import Services
from broker.server.handlers07 import fetch, multi_fetch, multi_produce, offsets, produce
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    RequestType,
    Response,
)
from pyspark_kafkalog.steps import Steps

Handler = Callable[[Any, Services], "Response | Steps[Response | None] | None"]

HANDLERS: Mapping[type, tuple[RequestType, Handler]] = MappingProxyType(
    {
        ProduceRequest: (RequestType.PRODUCE, produce.produce),
        FetchRequest: (RequestType.FETCH, fetch.fetch),
        MultiFetchRequest: (RequestType.MULTIFETCH, multi_fetch.multi_fetch),
        MultiProduceRequest: (RequestType.MULTIPRODUCE, multi_produce.multi_produce),
        OffsetsRequest: (RequestType.OFFSETS, offsets.offsets),
    }
)
