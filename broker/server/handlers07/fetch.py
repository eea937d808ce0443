"""FETCH: bytes of a log from an offset on, sent from the file without being read.

They end at ``max_bytes``, at the end of what is on the disk, and at the end of the segment, whichever is
first, and so perhaps inside an entry. A topic that nobody has produced to is empty at every offset.
"""

from __future__ import annotations

import logging

from broker.server.context import Services
from broker.server.partitions07 import find_log
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.v07 import FetchRequest, FetchResponse, RequestType, known_error

LONGEST_ANSWER_BYTES = (1 << 31) - 1
"""The size that stands before an answer has 31 bits."""

_ERROR_BYTES = 2

_log = logging.getLogger(__name__)


def fetch(request: FetchRequest, services: Services) -> FetchResponse:
    """The answer for one partition; an error is in it."""
    return read(request, services, LONGEST_ANSWER_BYTES - _ERROR_BYTES, RequestType.FETCH)


def read(want: FetchRequest, services: Services, limit: int, kind: RequestType) -> FetchResponse:
    """At most ``limit`` bytes, or the error, of a fetch that came in a request of this ``kind``."""
    try:
        log = find_log(services, want.topic, want.partition)
        if log is None:
            return FetchResponse(ErrorCode.NONE)
        # 0.7.2 answers a negative size with a broken frame; it can only mean nothing.
        piece = log.read(want.offset, max(0, min(want.max_bytes, limit)), at_least_one=False)
    except KafkaError as e:
        code = known_error(e.code)
        services.metrics.request_errors(f"{kind.name} 0.7", code.name).inc()
        _log.debug("%s refused: %s", kind.name, e)
        return FetchResponse(code)
    return FetchResponse(ErrorCode.NONE, piece)
