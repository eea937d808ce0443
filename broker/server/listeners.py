"""The listeners: each speaks one protocol, serves the topics of one family, and may show others' by views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.config import BrokerConfig
from broker.endpoint import KAFKA07, PLAINTEXT, Endpoint
from broker.log.family import LogFamily
from broker.log.generations import SINCE_08, V07
from broker.log.manager import LogManager
from broker.metrics import Metrics
from broker.network.processor import Handler
from broker.network.request_memory import RequestMemory
from broker.network.server import NetworkConfig, SocketServer
from broker.server.context import Services
from broker.server.dispatch import Dispatcher
from broker.server.dispatch07 import Dispatcher07
from broker.server.served_logs import ServedLogs, Views
from broker.server.view07 import View07

_PROTOCOLS: Mapping[str, tuple[LogFamily, Callable[[Services], Handler], Callable[[Metrics], Views]]] = {
    PLAINTEXT: (SINCE_08, Dispatcher, lambda metrics: {V07.generation: View07(metrics)}),
    KAFKA07: (V07, Dispatcher07, lambda _: {}),
}
"""What each serves: a family as it is, and by views other families, whose topics can be read only."""


class Listeners:
    """*Thread-safe: `start` and `stop` are called by the broker, once each.* A socket server per listener."""

    def __init__(self, config: BrokerConfig, logs: LogManager, services: Services) -> None:
        """``services`` are those of the handlers but for the logs, which each protocol sees its own of."""
        self._servers: dict[str, SocketServer] = {}
        limit = config.queued_max_request_bytes
        memory = RequestMemory(limit if limit >= 0 else None, largest_bytes=config.socket_request_max_bytes)
        services.metrics.watch_requests(lambda: memory.reserved_bytes, lambda: memory.waiting_count)
        for endpoint in config.endpoints:
            family, dispatcher, views = _PROTOCOLS[endpoint.protocol]
            ownership = services.ownership if family is SINCE_08 else None
            served = ServedLogs(logs, family, views(services.metrics), ownership)
            handler = dispatcher(replace(services, logs=served))
            network = _network(config, endpoint)
            self._servers[endpoint.protocol] = SocketServer(
                network, handler, services.metrics, services.clock, memory
            )

    @property
    def ports(self) -> dict[str, int]:
        """The port of each protocol, in the order of the configuration; once started never 0."""
        return {protocol: server.port for protocol, server in self._servers.items()}

    def start(self) -> None:
        """Listen and serve. Connections are answered when this returns.

        Raises:
            InvalidConfig: an address cannot be listened on; then none is.
        """
        started = []
        try:
            for server in self._servers.values():
                server.start()
                started.append(server)
        except BaseException:
            for server in started:
                server.stop(0.0)
            raise

    def stop(self, grace_seconds: float) -> None:
        """Stop accepting, and let what is in hand be answered, each listener for up to ``grace_seconds``."""
        for server in self._servers.values():
            server.stop(grace_seconds)


def _network(config: BrokerConfig, endpoint: Endpoint) -> NetworkConfig:
    return NetworkConfig(
        host=endpoint.host,
        port=endpoint.port,
        processors=config.num_network_threads,
        max_request_bytes=config.socket_request_max_bytes,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        receive_buffer_bytes=config.socket_receive_buffer_bytes,
        max_connections=config.max_connections,
        max_idle_ms=config.connections_max_idle_ms,
        max_receive_ms=config.request_receive_timeout_ms,
        backlog=config.socket_listen_backlog_size,
    )
