"""MULTIFETCH: several fetches in one answer, in their order; the error of one is in its own part."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

from broker.server.context import Services
from broker.server.handlers07.fetch import LONGEST_ANSWER_BYTES, read
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.v07 import FetchResponse, MultiFetchRequest, MultiFetchResponse, RequestType

_ERROR_BYTES = 2
_NOTHING = FetchResponse(ErrorCode.NONE)
_PART_HEADER_BYTES = 6


def multi_fetch(request: MultiFetchRequest, services: Services) -> MultiFetchResponse:
    """What all of them ask for, as far as it fits into one answer: the last are cut, perhaps to nothing.

    Each part with messages keeps its file open until it is sent. Where there are more parts than may do so,
    the first to be read is chosen at random: nobody remembers which ones came empty.
    """
    count, most_files = len(request.fetches), services.logs.files_per_answer()
    left = LONGEST_ANSWER_BYTES - _ERROR_BYTES - _PART_HEADER_BYTES * count
    start = random.randrange(count) if count > most_files else 0
    parts = [_NOTHING] * count
    files: set[Path] = set()
    for number in chain(range(start, count), range(start)):
        has_room = len(files) < most_files
        part = read(request.fetches[number], services, left if has_room else 0, RequestType.MULTIFETCH)
        if len(part.messages):
            left -= len(part.messages)
            files.add(part.messages.path)
        parts[number] = part
    return MultiFetchResponse(tuple(parts))
