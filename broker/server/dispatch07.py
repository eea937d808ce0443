"""From a 0.7 request's bytes to its handler and back: what the socket server of a KAFKA07 listener calls."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import cast

from broker.network.reply import Reply
from broker.network.transmission import Part
from broker.server.context import Services
from broker.server.handlers07 import HANDLERS
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.v07 import RequestType, Response, decode_request, encode_response
from pyspark_kafkalog.steps import Steps

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("broker.requests")


class Dispatcher07:
    """*Thread-safe: it changes nothing of its own.* Decodes requests, calls handlers, encodes answers.

    There is no correlation id: the channel keeps answers in the order of the requests. A request that cannot
    be read, or fails where it has no answer, closes its connection.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._served = {
            kind: (handler, services.metrics.requests(f"{number.name} 0.7"))
            for kind, (number, handler) in HANDLERS.items()
        }

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        """Handle one request; called in a processor thread. Never raises for what a client sent."""
        try:
            request = decode_request(frame)
            handler, count = self._served[type(request)]
            count.inc()
            if _request_log.isEnabledFor(logging.DEBUG):
                _request_log.debug("%s %s 0.7: %d bytes", reply.peer, _name_of(frame), len(frame))
            response = handler(request, self._services)
        except KafkaError as e:
            self._refused(_name_of(frame), e, reply)
            return None
        if isinstance(response, Generator):
            reply.go_on_with(self._in_steps(response, _name_of(frame), reply))
            return None
        if response is None:
            reply.no_answer()
            return None
        return _encoded(response)

    def _in_steps(self, handling: Steps[Response | None], name: str, reply: Reply) -> Steps[None]:
        """What a handler's steps come to, given to the client."""
        try:
            response = yield from handling
        except KafkaError as e:
            self._refused(name, e, reply)
            return
        if response is None:
            reply.no_answer()
        else:
            reply.send(_encoded(response))

    def _refused(self, name: str, error: KafkaError, reply: Reply) -> None:
        """All that can be done for a request that failed."""
        self._services.metrics.request_errors(name, error.code.name).inc()
        _log.info("closing the connection of %s: %s", reply.peer, error)
        reply.close()


def _encoded(response: Response) -> Sequence[Part]:
    return cast("Sequence[Part]", encode_response(response))


def _name_of(frame: bytearray) -> str:
    """The API that a frame asks for, as the metrics have it."""
    try:
        return f"{RequestType(int.from_bytes(frame[:2], 'big')).name} 0.7"
    except ValueError:
        return "unknown 0.7"
