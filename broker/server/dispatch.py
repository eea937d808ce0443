"""From a request's bytes to its handler and back: what the socket server calls."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from types import GeneratorType
from typing import cast

from broker.network.reply import Part, Reply
from broker.server.context import LATER, REGISTRY, CloseConnection, Context, Registration, Services
from broker.server.handlers.api_versions import unsupported
from broker.server.handlers07 import HANDLERS
from broker.server.request_limits import NARROW_BYTES, check_elements, check_width
from pyspark_kafkalog.errors import KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.exchange import ApiKey, RequestHeader, decode_header, decode_request
from pyspark_kafkalog.protocol.v07 import RequestType, Response
from pyspark_kafkalog.protocol.v07 import decode_request as decode_request07
from pyspark_kafkalog.protocol.v07 import encode_response as encode_response07
from pyspark_kafkalog.steps import Steps, continued

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("broker.requests")


class Dispatcher:
    """*Thread-safe: it changes nothing of its own.* Decodes requests, calls handlers, encodes answers.

    A request that cannot be read closes its connection: no layout is known in which to answer it.
    Everything else is answered with an error code.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # By plain number, with the counter at hand: this is the hot path of every request.
        self._served = {
            int(key): (entry, services.metrics.requests(key.name)) for key, entry in REGISTRY.items()
        }

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        """Handle one request; called in a processor thread. Never raises for what a client sent.

        The answer, or None where ``reply`` gets it or there is none.
        """
        try:
            header, pos = decode_header(frame)
            return self._handle(header, frame, pos, reply)
        except (CloseConnection, KafkaError) as e:
            _log.info("closing the connection of %s: %s", reply.peer, e)
            reply.close()
            return None

    def _handle(
        self, header: RequestHeader, frame: bytearray, pos: int, reply: Reply
    ) -> Sequence[Part] | None:
        try:
            entry, count = self._served[header.api_key]
        except KeyError:
            raise UnsupportedVersion(f"api key {header.api_key} is not served") from None
        count.inc()
        if _request_log.isEnabledFor(logging.DEBUG):
            _request_log.debug(
                "%s %s v%d id %d client %s: %d bytes",
                reply.peer, entry.key.name, header.api_version, header.correlation_id, header.client_id,
                len(frame),
            )  # fmt: skip
        if len(frame) > NARROW_BYTES:
            check_width(entry.key, header, frame, pos)
        context = Context(self._services, header, reply)
        low, high = entry.versions
        if not low <= header.api_version <= high:
            return _answer_unknown_version(entry, context)
        if entry.short_cut is not None:
            parts = entry.short_cut(frame, pos, context)
            if parts is not None:
                return parts
        request = decode_request(header, frame, pos)
        check_elements(entry.key, len(frame), request)
        response = entry.handler(request, context)
        if type(response) is GeneratorType:
            # Most are done with their first step, and need no turns.
            try:
                wanted = next(response)
            except StopIteration as e:
                response = e.value
            else:
                reply.go_on_with(context.answering(continued(wanted, response)))
                return None
        if response is LATER:
            return None
        if response is None:
            reply.no_answer()
            return None
        return context.encode(response)


def _answer_unknown_version(entry: Registration, context: Context) -> Sequence[Part]:
    """ApiVersions has an answer for it; of the others nobody knows the layout.

    Raises:
        UnsupportedVersion: the connection is to be closed.
    """
    if entry.key is ApiKey.API_VERSIONS:
        return context.encode(unsupported(), version=0)
    low, high = entry.versions
    raise UnsupportedVersion(f"{entry.key.name} version {context.version}; served are {low} to {high}")


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
            request = decode_request07(frame)
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
    return cast("Sequence[Part]", encode_response07(response))


def _name_of(frame: bytearray) -> str:
    """The API that a frame asks for, as the metrics have it."""
    try:
        return f"{RequestType(int.from_bytes(frame[:2], 'big')).name} 0.7"
    except ValueError:
        return "unknown 0.7"
