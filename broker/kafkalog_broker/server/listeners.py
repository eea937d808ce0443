"""The broker's listeners: a socket server each, with security and request handler."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.endpoint import KAFKA07, SASL_PLAINTEXT, SASL_SSL, SSL, Endpoint
from kafkalog_broker.config.listener_config import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    PREFIX,
    ListenerConfig,
    ListenerProperties,
)
from kafkalog_broker.log.family import LogFamily
from kafkalog_broker.log.generations import SINCE_08, V07
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.network.channel import Entrance, RequestMemory
from kafkalog_broker.network.processor import RequestHandler
from kafkalog_broker.network.socket_server import AddressLimits, NetworkConfig, Sessions, SocketServer
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.security.authentication import Mechanism
from kafkalog_broker.security.certificates import ListenerCertificates
from kafkalog_broker.security.credentials import lookup_in
from kafkalog_broker.security.mapping_rules import Rule, parse_rules
from kafkalog_broker.security.mechanisms import Plain, Scram, plain_passwords
from kafkalog_broker.security.oauthbearer import SignedTokens, oauth_bearer
from kafkalog_broker.security.principal import Session, java_address
from kafkalog_broker.server.dispatch import Dispatcher, Services
from kafkalog_broker.server.handlers07 import Dispatcher07
from kafkalog_broker.server.log_access import LogAccess, Views
from kafkalog_broker.server.login import LoginGate, SecuredSession
from kafkalog_broker.server.views.view07 import View07
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.scram import ScramCredential

_log = logging.getLogger(__name__)

_CLIENT_AUTH = "ssl.client.auth"

_ENTERING_BYTES = 16 << 20
"""Memory for requests of all clients that have not logged in, beyond the 4 KiB that each has."""

_SINCE_08: tuple[LogFamily, Callable[[Services], RequestHandler], Callable[[Metrics], Views]]
_SINCE_08 = (SINCE_08, Dispatcher, lambda metrics: {V07.generation: View07(metrics)})
_V07: tuple[LogFamily, Callable[[Services], RequestHandler], Callable[[Metrics], Views]]
_V07 = (V07, Dispatcher07, lambda _: {})
"""What each wire serves: its own log family, and read-only views of others."""


class Listeners:
    """*Thread-safe: the broker calls `start` and `stop`, once each.* A socket server per listener."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        services: Services,
        advertised: Callable[[], Mapping[str, tuple[str, int]]],
        timers: Scheduler,
    ) -> None:
        """``services`` are the handlers', except for logs and address, which each listener has of its own, so
        that clients stay with the listener they came to. ``timers`` delays the answers to failed logins.
        Raises `InvalidConfig`: a listener has no certificate, or no login mechanism.
        """
        self._config = config
        self._services = services
        self._timers = timers
        self._workers = ThreadPoolExecutor(config.num_io_threads, "kafkalog-request")
        self._servers: dict[str, SocketServer] = {}
        self._certificates: list[ListenerCertificates] = []
        self._keys: list[tuple[SignedTokens, int]] = []
        self._entering = RequestMemory(_ENTERING_BYTES)
        limit = config.queued_max_request_bytes
        memory = RequestMemory(limit if limit >= 0 else None, largest_bytes=config.socket_request_max_bytes)
        services.metrics.watch_requests(lambda: memory.reserved_bytes, lambda: memory.waiting_count)
        limit_of_one, overrides = config.address_limits()
        addresses = AddressLimits(limit_of_one, limits_by_address(overrides))
        for endpoint in config.endpoints:
            protocol = config.protocols[endpoint.name]
            family, dispatcher, views = _V07 if protocol == KAFKA07 else _SINCE_08
            ownership = services.ownership if family is SINCE_08 else None
            served = LogAccess(logs, family, views(services.metrics), ownership)
            address = partial(_of, advertised, endpoint.name)
            handler = dispatcher(replace(services, logs=served, endpoint=address))
            self._servers[endpoint.name] = self._server(endpoint, protocol, handler, memory, addresses)

    def _server(
        self,
        endpoint: Endpoint,
        protocol: str,
        handler: RequestHandler,
        memory: RequestMemory,
        addresses: AddressLimits,
    ) -> SocketServer:
        """One listener's server, with its login in front of the handler."""
        config, name = self._config, endpoint.name
        own = config.listener_properties.of(name)
        sessions: Sessions = partial(_session, name)
        entrance = None
        if protocol in (SSL, SASL_SSL, SASL_PLAINTEXT):
            entrance = self._entrance(name, protocol, own)
            gate = self._gate(name, handler, own) if protocol in (SASL_SSL, SASL_PLAINTEXT) else None
            handler = gate or handler
            sessions = partial(_secured_session, name, gate, parse_rules(own.ssl_principal_mapping_rules))
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
        services = self._services
        return SocketServer(
            network, handler, services.metrics, services.clock, memory, sessions, entrance, addresses,
            workers=self._workers,
        )  # fmt: skip

    def renew_certificates(self) -> None:
        """Reload certificates whose files were replaced, and token keys if an unknown one was used."""
        for each in self._certificates:
            each.renew()
        for keys, _ in self._keys:
            if keys.wanted:
                keys.refresh_in_background()

    def refresh_keys(self, every: Callable[[str, float, Callable[[], object]], object]) -> None:
        """Refresh token keys regularly, with a scheduler's ``every``."""
        for keys, refresh_ms in self._keys:
            every("keys of tokens", refresh_ms / 1000, keys.refresh_in_background)

    def _entrance(self, name: str, protocol: str, own: ListenerConfig) -> Entrance:
        context = None
        if protocol in (SSL, SASL_SSL):
            if protocol == SASL_SSL and own.ssl_client_auth != "none":
                own = self._without_client_auth(name, own)
            certificates = ListenerCertificates(name, own)
            self._certificates.append(certificates)
            context = partial(getattr, certificates, "context")
        return Entrance(
            context,
            own.sasl_server_max_receive_size,
            own.connection_authentication_timeout_ms / 1000,
            self._entering,
        )

    def _without_client_auth(self, name: str, own: ListenerConfig) -> ListenerConfig:
        """As in Kafka: a SASL_SSL listener asks for certificates only if its own property says so."""
        prefixed = f"{PREFIX}{name.lower()}.{_CLIENT_AUTH}"
        if prefixed in self._config.listener_properties.texts:
            return own
        _log.warning(
            "%s=%s is for listeners of %s; %s speaks %s: to ask its clients for certificates too set %s",
            _CLIENT_AUTH, own.ssl_client_auth, SSL, name, SASL_SSL, prefixed,
        )  # fmt: skip
        return replace(own, ssl_client_auth="none")

    def _gate(self, name: str, handler: RequestHandler, own: ListenerConfig) -> LoginGate:
        services = self._services
        return LoginGate(
            handler,
            mechanisms_of(
                name, self._config.listener_properties, lookup_in(services.credentials), self._keys
            ),
            clock=services.clock,
            metrics=services.metrics,
            after=self._timers.after,
            delay_seconds=own.connection_failed_authentication_delay_ms / 1000,
        )

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, in configured order; never 0 once started."""
        return {name: server.port for name, server in self._servers.items()}

    def start(self) -> None:
        """Listen and serve; connections are answered when this returns.
        Raises `InvalidConfig`: one address cannot be used; then none is.
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
        """Stop accepting; answer pending requests for up to ``grace_seconds`` each, and await workers."""
        for server in self._servers.values():
            server.stop(grace_seconds)
        self._workers.shutdown(cancel_futures=True)


def _of(advertised: Callable[[], Mapping[str, tuple[str, int]]], listener: str) -> tuple[str, int]:
    return advertised()[listener]


def mechanisms_of(
    listener: str,
    properties: ListenerProperties,
    lookup: Callable[[str, str], ScramCredential | None],
    keys: list[tuple[SignedTokens, int]],
) -> dict[str, Mechanism]:
    """A listener's login mechanisms, in configured order; adds the token keys to refresh, with the interval
    in ms, to ``keys``. Raises `InvalidConfig`: there is no mechanism, or one lacks a property.
    """
    found: dict[str, Mechanism] = {}
    for mechanism in properties.of(listener).sasl_enabled_mechanisms:
        own = properties.of(listener, mechanism)
        prefix = f"{PREFIX}{listener.lower()}.{mechanism.lower()}."
        if mechanism != OAUTHBEARER:
            _check_handler(mechanism, properties.texts.get(prefix + _HANDLER), prefix)
        if mechanism == PLAIN:
            users = plain_passwords(own.sasl_jaas_config, prefix + "sasl.jaas.config")
            found[mechanism] = Plain(users, own.connections_max_reauth_ms)
        elif mechanism == OAUTHBEARER:
            found[mechanism], signed = oauth_bearer(own, prefix)
            if signed is not None:
                keys.append((signed, own.sasl_oauthbearer_jwks_endpoint_refresh_ms))
        else:
            found[mechanism] = Scram(mechanism, lookup, own.connections_max_reauth_ms)
    if not found:
        name = f"{PREFIX}{listener.lower()}.sasl.enabled.mechanisms"
        raise InvalidConfig(f"listener {listener} has no way to log in: set {name} to {','.join(MECHANISMS)}")
    return found


def limits_by_address(overrides: Mapping[str, int]) -> dict[str, int]:
    """Limits by socket address; resolves names, as Kafka does. Raises `InvalidConfig`: one has none."""
    found: dict[str, int] = {}
    for host, limit in overrides.items():
        try:
            every = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except socket.gaierror as e:
            raise InvalidConfig(
                f"max.connections.per.ip.overrides={host}:{limit}: cannot find the address of {host!r}: "
                f"{e.strerror}"
            ) from e
        found.update(dict.fromkeys((str(address[0]) for *_, address in every), limit))
    return found


_HANDLER = "sasl.server.callback.handler.class"
_OWN_HANDLERS = {PLAIN: "PlainServerCallbackHandler"}
"""Kafka's default handlers by mechanism, the others being SCRAM's; their work is built in here."""


def _check_handler(mechanism: str, handler: str | None, prefix: str) -> None:
    """Refuse other classes that decide who may log in: ignoring one would let others in."""
    own = _OWN_HANDLERS.get(mechanism, "ScramServerCallbackHandler")
    if handler is not None and not handler.endswith(own):
        raise InvalidConfig(
            f"{prefix}{_HANDLER}={handler} is not supported: only {OAUTHBEARER} can have a handler. Remove "
            f"it, and give the users as {mechanism} has them"
        )


def _secured_session(
    listener: str, gate: LoginGate | None, rules: Sequence[Rule], address: tuple[Any, ...]
) -> SecuredSession:
    login = gate.login() if gate is not None else None
    return SecuredSession(java_address(address[0]), listener, login, rules)


def _session(listener: str, address: tuple[Any, ...]) -> Session:
    return Session(java_address(address[0]), listener)
