"""Kafka 0.7's protocol over one transport: no versions, no correlation ids, responses in order. A produce has
no response; a broker refuses it by closing the connection, or drops what is above ``max.message.size``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport, peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import Client07Config
from pyspark_kafkalog.errors import ConnectionLost, InvalidRequest, KafkaError, MessageTooLarge
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    RequestType,
    Response,
    decode_response,
    encode_request,
)

Produce: TypeAlias = ProduceRequest | MultiProduceRequest
Question: TypeAlias = FetchRequest | MultiFetchRequest | OffsetsRequest

_KINDS = {
    FetchRequest: RequestType.FETCH,
    MultiFetchRequest: RequestType.MULTIFETCH,
    OffsetsRequest: RequestType.OFFSETS,
}
_NOTHING = MultiFetchRequest(())


@dataclass(slots=True, eq=False)
class Ticket07:
    """One request in flight; `Connection07.receive` exchanges it for the response."""

    kind: RequestType
    produced: int  # produces sent before it
    frame: bytearray | None = field(default=None, repr=False)


class Connection07:
    """*Not thread-safe.* One Kafka 0.7 broker and the requests in flight; closed and `broken` on failure."""

    def __init__(
        self,
        host: str,
        port: int,
        config: Client07Config,
        *,
        deadline: Deadline | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect within ``connect.timeout.ms``; sends nothing yet."""
        self.peer = peer_name(host, port)
        self.broken = False
        self._config, self._clock = config, clock
        self._waiting: deque[Ticket07] = deque()
        self._produced = self._confirmed = 0
        self.transport = Transport.connect(
            host,
            port,
            Deadline.limited(deadline, config.connect_timeout_ms / 1000, clock),
            max_frame_bytes=config.max_response_bytes,
            send_buffer_bytes=config.socket_buffer_bytes,
            receive_buffer_bytes=config.socket_buffer_bytes,
        )

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def unconfirmed(self) -> int:
        return self._produced - self._confirmed

    def request(self, question: Question, *, deadline: Deadline | None = None) -> Any:
        """Send ``question`` and wait for its response, at most ``socket.timeout.ms``."""
        limit = self._limit(deadline)
        return self.receive(self.send(question, deadline=limit), deadline=limit)

    def send(self, question: Question, *, deadline: Deadline | None = None) -> Ticket07:
        ticket = Ticket07(_KINDS[type(question)], self._produced)
        self._send(question, deadline)
        self._waiting.append(ticket)
        return ticket

    def produce(self, request: Produce, *, deadline: Deadline | None = None) -> None:
        """Send messages; returns when the system has accepted them. `MessageTooLarge`: nothing was sent."""
        self._send(request, deadline)
        self._produced += 1

    def confirm(self, deadline: Deadline | None = None) -> None:
        """Wait until the broker has handled every produce. Raises `ConnectionLost` if it refused one."""
        self.request(_NOTHING, deadline=deadline)

    def receive(self, ticket: Ticket07, *, deadline: Deadline | None = None) -> Response:
        """The response to ``ticket``; keeps those of earlier requests for their own `receive`."""
        limit = self._limit(deadline)
        try:
            while ticket.frame is None:
                if self.broken:
                    raise ConnectionLost(f"{self.peer}: the connection is closed")
                if ticket not in self._waiting:
                    raise InvalidRequest(
                        f"{self.peer}: the response to {ticket.kind.name} was already received"
                    )
                self._match(self.transport.receive(limit))
            frame, ticket.frame = ticket.frame, None
            return self._decode(ticket, frame)
        except BaseException:
            # Also on Ctrl-C: the next response would be assigned to another request.
            self.close()
            raise

    def look(self) -> None:
        if self.broken:
            raise ConnectionLost(f"{self.peer}: the connection is closed")
        try:
            for frame in self.transport.receive_now():
                self._match(frame)
        except KafkaError:
            self.close()
            raise

    def close(self) -> None:
        self.broken = True
        self.transport.close()

    def _limit(self, deadline: Deadline | None) -> Deadline:
        return Deadline.limited(deadline, self._config.socket_timeout_ms / 1000, self._clock)

    def _send(self, request: Produce | Question, deadline: Deadline | None) -> None:
        if self.broken:
            raise ConnectionLost(f"{self.peer}: the connection is closed")
        parts = encode_request(request)
        size = sum(map(len, parts))
        if size > self._config.max_request_bytes:
            raise MessageTooLarge(
                f"{self.peer}: a request of {size} bytes is above max.socket.request.bytes="
                f"{self._config.max_request_bytes}"
            )
        try:
            self.transport.send(parts, self._limit(deadline))
        except BaseException:
            self.close()
            raise

    def _match(self, frame: bytearray) -> None:
        if not self._waiting:
            raise InvalidRequest(f"{self.peer}: a response arrived without a request")
        ticket = self._waiting.popleft()
        ticket.frame = frame
        self._confirmed = ticket.produced

    def _decode(self, ticket: Ticket07, frame: bytearray) -> Response:
        try:
            return decode_response(ticket.kind, frame)
        except KafkaError as e:
            raise InvalidRequest(f"{self.peer}: {e}") from e
