"""A connection as its processor has it, and the entrance through which its client comes in."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkalog_broker.network.channel import Channel, RequestMemory
from kafkalog_broker.network.reply import Reply
from kafkalog_broker.network.tls import ServerTls


class Guarded(Protocol):
    """What the network asks of the session of a connection that comes in through an `Entrance`."""

    admitted: bool
    """Whether it is known who the client is; changed between requests, in the processor's thread."""

    def secured(self, tls: ssl.SSLObject) -> None:
        """The handshake is done. Raises `KafkaError`: with this certificate the client cannot stay."""


@dataclass(frozen=True)
class Entrance:
    """*Thread-safe.* How clients come in: over TLS, with a login, or both; and the limits until they are in.

    ``context`` is asked for each connection, so that certificates can be replaced; None without TLS.
    ``memory`` is for the requests of all those that are not in yet.
    """

    context: Callable[[], ssl.SSLContext] | None
    max_request_bytes: int
    max_seconds: float
    memory: RequestMemory


@dataclass(slots=True, eq=False)
class Connection:
    """A socket with its channel. Owned by the processor."""

    sock: socket.socket
    peer: str
    session: Any
    last_active: float  # when bytes moved; while an answer is being sent, bytes of that
    coming_in_since: float
    opened: float
    channel: Channel = field(init=False)
    coming_in: int = 0  # the request that was there only in part at the last tick
    open: bool = True
    ended: bool = False  # the client sends nothing more; what it has sent is still handled
    mask: int = 0  # what the selector watches; 0 = not registered
    reply: Reply | None = None  # of the request in hand
    queued: bool = False  # for its next turn
    on_close: Callable[[], object] | None = None
    tls: ServerTls | None = None
    entering: bool = False  # with the limits of the entrance
    reading_on: bool = False  # queued, for what the selector does not know of

    @property
    def is_served(self) -> bool:
        """Whether it waits for its next turn, or for a worker."""
        return self.queued or (self.reply is not None and self.reply.work is not None)
