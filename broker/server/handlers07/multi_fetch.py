"""MULTIFETCH: several fetches in one answer, in their order; the error of one is in its own part."""

from __future__ import annotations

import random
from itertools import chain

from broker.server.context import Services
from broker.server.handlers07.fetch import LONGEST_ANSWER_BYTES, read
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.v07 import FetchResponse, MultiFetchRequest, MultiFetchResponse, RequestType

_ERROR_BYTES = 2
_NOTHING = FetchResponse(ErrorCode.NONE)
_PART_HEADER_BYTES = 6


def multi_fetch(request: MultiFetchRequest, services: Services) -> MultiFetchResponse:
    """What all of them ask for, as far as it fits into one answer: the last are cut, perhaps to nothing.

    Each part with messages keeps a file open until it is sent. Where there are more parts than may do so,
    the first to be read is taken at random: nobody remembers which ones came empty.
    """
    count, files = len(request.fetches), services.logs.files_per_answer()
    left = LONGEST_ANSWER_BYTES - _ERROR_BYTES - _PART_HEADER_BYTES * count
    start = random.randrange(count) if count > files else 0
    parts = [_NOTHING] * count
    for number in chain(range(start, count), range(start)):
        part = read(request.fetches[number], services, left if files else 0, RequestType.MULTIFETCH)
        left -= len(part.messages)
        files -= bool(len(part.messages))
        parts[number] = part
    return MultiFetchResponse(tuple(parts))
