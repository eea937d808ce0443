"""The socket server: one acceptor thread and N processor threads."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from broker.metrics import Metrics
from broker.network.acceptor import Acceptor, listen, peer_name
from broker.network.channel import RequestMemory
from broker.network.processor import Handler, Processor
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetworkConfig:
    """What the socket server must know; the broker's configuration has the properties for it."""

    host: str = "127.0.0.1"
    """Address to listen on; empty means all interfaces."""
    port: int = 9092
    """0 means a free port, which `SocketServer.port` then names."""
    processors: int = 1
    """Threads that read, handle and answer. With the GIL one is best; see `Processor`."""
    max_request_bytes: int = 104_857_600
    """A request that claims more closes its connection before memory is taken for it."""
    send_buffer_bytes: int = -1
    """``SO_SNDBUF``; -1 leaves it to the kernel."""
    receive_buffer_bytes: int = -1
    """``SO_RCVBUF``; -1 leaves it to the kernel."""
    max_connections: int = 2**31 - 1
    """Further connections are accepted and closed at once, so that the client sees why."""
    max_idle_ms: int = 600_000
    """A connection without traffic for this time, and with no request in hand, is closed; -1 means never."""
    max_receive_ms: int = 60_000
    """A request that is not whole this long after its first byte closes its connection."""
    backlog: int = 1024
    """Connections that may wait to be accepted; the kernel has a limit of its own."""


class SocketServer:
    """Accepts connections, cuts their bytes into requests, and sends the handler's answers.

    It knows sizes and bytes, not Kafka. Requests of one connection are handled one at a time and
    answered in order; connections do not wait for each other except for the time a handler computes.

    *Thread-safe: `start` and `stop` are called by the server's owner, in this order and once.* The
    acceptor thread owns the listening socket, each processor thread its own connections; they share
    nothing but queues with a wake-up pipe, and the ``memory``, which may be shared with other servers. The
    handler runs in a processor thread and must not block: what has to wait keeps its `Reply` and answers
    later from another thread.
    """

    def __init__(
        self,
        config: NetworkConfig,
        handler: Handler,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        memory: RequestMemory | None = None,
    ) -> None:
        self._memory = memory if memory is not None else RequestMemory()
        self._config = config
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._processors: list[Processor] = []
        self._acceptor: Acceptor | None = None
        self.host, self.port = config.host, config.port
        """Where it listens; after `start` the port is never 0."""

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return 0 if self._acceptor is None else self._acceptor.connection_count

    def start(self) -> None:
        """Listen and serve; connections are answered when this returns. Raises as `listen`."""
        config = self._config
        listener = listen(config.host, config.port, config.backlog, config.receive_buffer_bytes)
        self.host, self.port = listener.getsockname()[:2]
        self._processors = [
            Processor(
                number,
                self._handler,
                self._metrics,
                max_request_bytes=config.max_request_bytes,
                max_idle_seconds=config.max_idle_ms / 1000 if config.max_idle_ms >= 0 else float("inf"),
                clock=self._clock,
                max_receive_seconds=config.max_receive_ms / 1000,
                memory=self._memory,
            )
            for number in range(max(1, config.processors))
        ]
        self._acceptor = Acceptor(
            listener,
            self._processors,
            max_connections=config.max_connections,
            send_buffer_bytes=config.send_buffer_bytes,
            clock=self._clock,
        )
        for processor in self._processors:
            processor.start()
        self._acceptor.start()
        _log.info("listening on %s", peer_name((self.host, self.port)))

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop accepting, let requests in hand be answered for up to ``grace_seconds``, close everything.

        Requests that wait after one in hand are not begun.
        """
        if self._acceptor is None:
            return
        self._acceptor.stop()
        deadline = self._clock.monotonic() + grace_seconds
        for processor in self._processors:
            processor.begin_stop(deadline)
        for processor in self._processors:
            processor.join()
        _log.info("stopped listening on %s", peer_name((self.host, self.port)))
