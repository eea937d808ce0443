"""From a request's bytes to its handler and back: what the socket server calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from broker.network.reply import Reply
from broker.network.transmission import Part
from broker.server.context import Context, Services
from broker.server.handlers.api_versions import unsupported
from broker.server.handlers.produce import OLD_VERSIONS, refuse_old
from broker.server.registry import LATER, REGISTRY, CloseConnection, Registration
from broker.server.request_width import check_width
from pyspark_kafkalog.errors import KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.exchange import (
    ApiKey,
    decode_header,
    decode_request,
    encode_response,
)
from pyspark_kafkalog.protocol.headers import RequestHeader

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("broker.requests")


class Dispatcher:
    """*Thread-safe: it holds no state of its own.* Decodes requests, calls handlers, encodes answers.

    A request that cannot be read closes its connection: no layout is known in which to answer it.
    Everything else is answered with an error code.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(self, frame: bytearray, reply: Reply) -> None:
        """Handle one request; called in a processor thread. Never raises for what a client sent."""
        try:
            header, pos = decode_header(frame)
            self._handle(header, frame, pos, reply)
        except (CloseConnection, KafkaError) as e:
            _log.info("closing the connection of %s: %s", reply.peer, e)
            reply.close()

    def _handle(self, header: RequestHeader, frame: bytearray, pos: int, reply: Reply) -> None:
        entry = _find(header)
        self._services.metrics.requests(entry.key.name).inc()
        if _request_log.isEnabledFor(logging.DEBUG):
            _request_log.debug(
                "%s %s v%d id %d client %s: %d bytes",
                reply.peer, entry.key.name, header.api_version, header.correlation_id, header.client_id,
                len(frame),
            )  # fmt: skip
        check_width(entry.key, header, frame, pos)
        low, high = entry.versions
        if not low <= header.api_version <= high:
            self._answer_unknown_version(entry, header, frame, pos, reply)
            return
        request = decode_request(header, frame, pos)

        def answer(response: object) -> None:
            self._send(header, response, reply)

        response = entry.handler(request, Context(self._services, header, reply, answer))
        if response is LATER:
            return
        if response is None:
            reply.no_answer()
        else:
            answer(response)

    def _send(self, header: RequestHeader, response: object, reply: Reply) -> None:
        _reply_with(reply, response, header.api_version, header.correlation_id)

    def _answer_unknown_version(
        self, entry: Registration, header: RequestHeader, frame: bytearray, pos: int, reply: Reply
    ) -> None:
        """ApiVersions and old Produce have an answer for it; of the others nobody knows the layout.

        Raises:
            UnsupportedVersion: the connection is to be closed.
        """
        if entry.key is ApiKey.API_VERSIONS:
            _reply_with(reply, unsupported(), 0, header.correlation_id)
            return
        if entry.key is ApiKey.PRODUCE and OLD_VERSIONS[0] <= header.api_version <= OLD_VERSIONS[1]:
            reply.send([refuse_old(header, frame, pos)])
            return
        low, high = entry.versions
        raise UnsupportedVersion(f"{entry.key.name} version {header.api_version}; served are {low} to {high}")


def _reply_with(reply: Reply, response: object, version: int, correlation_id: int) -> None:
    # The protocol knows only the length of a part; that a record set is bytes or a region is ours to know.
    parts = encode_response(response, version=version, correlation_id=correlation_id)
    reply.send(cast("Sequence[Part]", parts))


def _find(header: RequestHeader) -> Registration:
    try:
        return REGISTRY[ApiKey(header.api_key)]
    except (ValueError, KeyError):
        raise UnsupportedVersion(f"api key {header.api_key} is not served") from None
