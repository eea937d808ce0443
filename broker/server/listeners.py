"""The broker's listeners: a socket server for each, with what secures it and what it serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from broker.config import BrokerConfig
from broker.endpoint import KAFKA07, PLAINTEXT
from broker.log.family import LogFamily
from broker.log.generations import SINCE_08, V07
from broker.metrics import Metrics
from broker.network.channel import RequestMemory
from broker.network.processor import Handler
from broker.network.socket_server import AddressLimits, NetworkConfig, SocketServer
from broker.security.principal import Session, java_address
from broker.server.dispatch import Dispatcher, Services
from broker.server.handlers07 import Dispatcher07
from broker.server.served_logs import ServedLogs, Views
from broker.server.views.view07 import View07
from broker.store.manager import LogManager
from pyspark_kafkalog.errors import InvalidConfig

_SINCE_08: tuple[LogFamily, Callable[[Services], Handler], Callable[[Metrics], Views]]
_SINCE_08 = (SINCE_08, Dispatcher, lambda metrics: {V07.generation: View07(metrics)})
_V07: tuple[LogFamily, Callable[[Services], Handler], Callable[[Metrics], Views]]
_V07 = (V07, Dispatcher07, lambda _: {})
"""What each wire serves: a family as it is, and by views other families, whose topics can be read only."""


class Listeners:
    """*Thread-safe: `start` and `stop` are called by the broker, once each.* A socket server per listener."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        services: Services,
        advertised: Callable[[], Mapping[str, tuple[str, int]]],
    ) -> None:
        """``services`` are those of the handlers but for the logs, which each wire sees its own of, and the
        address, which is the listener's own: clients stay with the listener that they came to.
        """
        self._servers: dict[str, SocketServer] = {}
        limit = config.queued_max_request_bytes
        memory = RequestMemory(limit if limit >= 0 else None, largest_bytes=config.socket_request_max_bytes)
        services.metrics.watch_requests(lambda: memory.reserved_bytes, lambda: memory.waiting_count)
        addresses = AddressLimits(*config.address_limits())
        for endpoint in config.endpoints:
            name, protocol = endpoint.name, config.protocols[endpoint.name]
            own = config.listener_properties.of(name)
            if protocol not in (PLAINTEXT, KAFKA07):
                raise InvalidConfig(f"listeners={endpoint}: {protocol} is not spoken yet")
            family, dispatcher, views = _V07 if protocol == KAFKA07 else _SINCE_08
            ownership = services.ownership if family is SINCE_08 else None
            served = ServedLogs(logs, family, views(services.metrics), ownership)
            handler = dispatcher(replace(services, logs=served, endpoint=partial(_of, advertised, name)))
            network = NetworkConfig(
                host=endpoint.host,
                port=endpoint.port,
                processors=own.num_network_threads or config.num_network_threads,
                max_request_bytes=config.socket_request_max_bytes,
                send_buffer_bytes=config.socket_send_buffer_bytes,
                receive_buffer_bytes=config.socket_receive_buffer_bytes,
                max_connections=own.max_connections or config.max_connections,
                max_idle_ms=config.connections_max_idle_ms,
                max_receive_ms=config.request_receive_timeout_ms,
                backlog=config.socket_listen_backlog_size,
            )
            self._servers[name] = SocketServer(
                network,
                handler,
                services.metrics,
                services.clock,
                memory,
                partial(_session, name),
                addresses=addresses,
            )

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, in the order of the configuration; once started never 0."""
        return {name: server.port for name, server in self._servers.items()}

    def start(self) -> None:
        """Listen and serve. Connections are answered when this returns.
        Raises `InvalidConfig`: an address cannot be listened on; then none is.
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


def _of(advertised: Callable[[], Mapping[str, tuple[str, int]]], listener: str) -> tuple[str, int]:
    return advertised()[listener]


def _session(listener: str, address: tuple[Any, ...]) -> Session:
    """Of a connection that was accepted: nobody has logged in yet."""
    return Session(java_address(address[0]), listener)
