"""A connection in its processor, and the `Entrance` for TLS and login."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkalog_broker.network.channel import Channel, RequestMemory
from kafkalog_broker.network.reply import Reply
from kafkalog_broker.network.tls_channel import ServerTls


class Guarded(Protocol):
    """What the network needs of a session behind an `Entrance`."""

    admitted: bool
    """Whether the client is authenticated; changes between requests, in the processor's thread."""

    def secured(self, tls: ssl.SSLObject) -> None:
        """Called after the handshake. Raises `KafkaError`: its certificate is not accepted."""


@dataclass(frozen=True)
class Entrance:
    """*Thread-safe.* TLS, login or both, and the limits until a client is admitted. ``context`` is called for
    each connection, so that certificates can be replaced; None without TLS. ``memory``: until admitted.
    """

    context: Callable[[], ssl.SSLContext] | None
    max_request_bytes: int
    max_seconds: float
    memory: RequestMemory


@dataclass(slots=True, eq=False)
class Connection:
    """A socket and its channel. Owned by the processor."""

    sock: socket.socket
    peer: str
    session: Any
    last_active: float  # last transfer; while an answer is being sent, of its bytes
    coming_in_since: float
    opened: float
    channel: Channel = field(init=False)
    coming_in: int = 0  # number of the partial request at the last tick
    open: bool = True
    ended: bool = False  # the client closed its side; handle what it sent
    mask: int = 0  # selector events; 0 = not registered
    reply: Reply | None = None  # of the request in hand
    queued: bool = False  # for its next turn
    on_close: Callable[[], object] | None = None
    tls: ServerTls | None = None
    entering: bool = False  # limits of the entrance apply
    reading_on: bool = False  # queued for data that the selector does not see

    @property
    def is_served(self) -> bool:
        return self.queued or (self.reply is not None and self.reply.work is not None)
