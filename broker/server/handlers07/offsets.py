"""OFFSETS: where segments begin that were last changed at a time or before it, and the end of the log."""

from __future__ import annotations

from broker.log.offsets_before import offsets_before
from broker.server.context import Services
from broker.server.partitions07 import find_log
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest
from pyspark_kafkalog.protocol.v07 import OffsetsRequest, OffsetsResponse
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def offsets(request: OffsetsRequest, services: Services) -> OffsetsResponse:
    """The offsets, the largest first; where nobody has produced, 0 is both the first and the last.

    Raises:
        InvalidRequest: fewer than no offsets are asked for.
        KafkaError: as `find_log`.
    """
    if request.max_offsets < 0:
        raise InvalidRequest(f"OFFSETS for {request.max_offsets} offsets")
    log = find_log(services, request.topic, request.partition)
    if log is None:
        named = request.timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
        return OffsetsResponse(ErrorCode.NONE, (0,)[: request.max_offsets] if named else ())
    found = offsets_before(
        log.facts(), log.readable_end, services.clock.time_ms(), request.timestamp, request.max_offsets
    )
    return OffsetsResponse(ErrorCode.NONE, found)
