"""MULTIFETCH: several fetches in one answer, in their order; the error of one is in its own part."""

from __future__ import annotations

from broker.server.context import Services
from broker.server.handlers07.fetch import LONGEST_ANSWER_BYTES, read
from pyspark_kafkalog.protocol.v07 import MultiFetchRequest, MultiFetchResponse, RequestType

_ERROR_BYTES = 2
_PART_HEADER_BYTES = 6


def multi_fetch(request: MultiFetchRequest, services: Services) -> MultiFetchResponse:
    """What all of them ask for, as far as it fits into one answer: the last are cut, perhaps to nothing."""
    left = LONGEST_ANSWER_BYTES - _ERROR_BYTES - _PART_HEADER_BYTES * len(request.fetches)
    parts = []
    for want in request.fetches:
        part = read(want, services, left, RequestType.MULTIFETCH)
        left -= len(part.messages)
        parts.append(part)
    return MultiFetchResponse(tuple(parts))
