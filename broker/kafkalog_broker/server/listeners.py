"""The broker's listeners: a socket server each, with certificates, logins and request handler."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

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
from kafkalog_broker.network.reply import Part, Reply
from kafkalog_broker.network.socket_server import AddressLimits, NetworkConfig, Sessions, SocketServer
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.security import authentication
from kafkalog_broker.security.file_stores import CredentialStore
from kafkalog_broker.security.mapping_rules import Rule, parse_rules, subject_of, user_of
from kafkalog_broker.security.oauthbearer import SignedTokens, oauth_bearer
from kafkalog_broker.server.dispatch import Dispatcher, Services
from kafkalog_broker.server.handlers07 import Dispatcher07
from kafkalog_broker.server.log_access import LogAccess, Views
from kafkalog_broker.server.view07 import View07
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, KafkaError
from pyspark_kafkalog.security.tls import server_context

_log = logging.getLogger(__name__)

_CLIENT_AUTH = "ssl.client.auth"

_ENTERING_BYTES = 16 << 20
"""Memory for requests of all clients that have not logged in, beyond the 4 KiB that each has."""

_SINCE_08: tuple[LogFamily, Callable[[Services], RequestHandler], Callable[[Metrics], Views]]
_SINCE_08 = (SINCE_08, Dispatcher, lambda metrics: {V07.generation: View07(metrics)})
_V07: tuple[LogFamily, Callable[[Services], RequestHandler], Callable[[Metrics], Views]]
_V07 = (V07, Dispatcher07, lambda _: {})
"""What each wire serves: its own log family, and read-only views of others."""


_RESERVED_DESCRIPTORS = 64
"""For what is neither a connection nor a segment file: other files, ZooKeeper, other brokers, the sockets
that listen.
"""


def connection_limits(config: BrokerConfig, descriptors: int) -> dict[str, int]:
    """Most connections of each listener by name: as configured, else an equal share of ``descriptors`` less
    the reserve. Logs configured limits that are too high. Raises `InvalidConfig`: the share is empty.
    """
    names = [endpoint.name for endpoint in config.endpoints]
    free = descriptors - _RESERVED_DESCRIPTORS
    share = free // len(names)
    limits = {
        name: config.listener_properties.of(name).max_connections or config.max_connections or share
        for name in names
    }
    if min(limits.values()) < 1:
        raise InvalidConfig(
            f"no descriptor is left for connections: of this process's, log.open.files.max leaves"
            f" {descriptors}, and {_RESERVED_DESCRIPTORS} are a reserve. Raise the limit (ulimit -n), or set"
            " max.connections"
        )
    if sum(limits.values()) > free:
        _log.warning(
            "max.connections: %d connections are allowed, but this process has descriptors for %d besides "
            "log.open.files.max and a reserve of %d; raise the limit (ulimit -n), or writes may fail",
            sum(limits.values()), free, _RESERVED_DESCRIPTORS,
        )  # fmt: skip
    return limits


class Listeners:
    """*Thread-safe: the broker calls `start` and `stop`, once each.* A socket server per listener."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        services: Services,
        advertised: Callable[[], Mapping[str, tuple[str, int]]],
        timers: Scheduler,
        descriptors: int,
    ) -> None:
        """Each listener has logs and address of its own in its ``services``; all share the ``descriptors``
        that the logs leave. Raises `InvalidConfig`.
        """
        self._config = config
        self._services = services
        self._timers = timers
        self._workers = ThreadPoolExecutor(config.num_io_threads, "kafkalog-request")
        self._servers: dict[str, SocketServer] = {}
        self._certificates: list[ListenerCertificates] = []
        self._keys: list[tuple[SignedTokens, int]] = []
        self._limits = connection_limits(config, descriptors)
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
            handler = dispatcher(structs.replace(services, logs=served, endpoint=address))
            self._servers[endpoint.name] = self._server(endpoint, protocol, handler, memory, addresses)

    def _server(
        self,
        endpoint: Endpoint,
        protocol: str,
        handler: RequestHandler,
        memory: RequestMemory,
        addresses: AddressLimits,
    ) -> SocketServer:
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
            max_connections=self._limits[name],
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
        for each in self._certificates:
            each.renew()
        for keys, _ in self._keys:
            if keys.wanted:
                keys.refresh_in_background()

    def refresh_keys(self, every: Callable[[str, float, Callable[[], object]], object]) -> None:
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
        max_seconds = own.connection_authentication_timeout_ms / 1000
        return Entrance(context, own.sasl_server_max_receive_size, max_seconds, self._entering)

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
            mechanisms_of(name, self._config.listener_properties, services.credentials, self._keys),
            clock=services.clock,
            metrics=services.metrics,
            after=self._timers.after,
            delay_seconds=own.connection_failed_authentication_delay_ms / 1000,
        )

    @property
    def ports(self) -> dict[str, int]:
        return {name: server.port for name, server in self._servers.items()}

    def start(self) -> None:
        """Listen and serve. Raises `InvalidConfig`: one address cannot be used; then none is."""
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
    users: CredentialStore,
    keys: list[tuple[SignedTokens, int]],
) -> dict[str, authentication.Mechanism]:
    """In configured order; adds token keys to refresh, with the interval in ms. Raises `InvalidConfig`."""
    found: dict[str, authentication.Mechanism] = {}
    for mechanism in properties.of(listener).sasl_enabled_mechanisms:
        own = properties.of(listener, mechanism)
        prefix = f"{PREFIX}{listener.lower()}.{mechanism.lower()}."
        if mechanism != OAUTHBEARER:
            _check_handler(mechanism, properties.texts.get(prefix + _HANDLER), prefix)
        if mechanism == PLAIN:
            passwords = authentication.plain_passwords(own.sasl_jaas_config, prefix + "sasl.jaas.config")
            found[mechanism] = authentication.Plain(passwords, own.connections_max_reauth_ms)
        elif mechanism == OAUTHBEARER:
            found[mechanism], signed = oauth_bearer(own, prefix)
            if signed is not None:
                keys.append((signed, own.sasl_oauthbearer_jwks_endpoint_refresh_ms))
        else:
            found[mechanism] = authentication.Scram(mechanism, users, own.connections_max_reauth_ms)
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
    return SecuredSession(authentication.java_address(address[0]), listener, login, rules)


def _session(listener: str, address: tuple[Any, ...]) -> authentication.Session:
    return authentication.Session(authentication.java_address(address[0]), listener)


# --- certificates

_Stamp = tuple[tuple[int, int, int] | None, ...]


class ListenerCertificates:
    """*Thread-safe: one thread calls `renew`; ``context`` is replaced as a whole.*"""

    def __init__(self, listener: str, config: ListenerConfig) -> None:
        self._listener = listener
        self._config = config
        self._stamp = self._look()
        self.context = self._made()

    def renew(self) -> None:
        """Reload replaced files. Logs an unusable one, and keeps the old context."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context = self._made()
        except (KafkaError, OSError) as e:
            _log.error("listener %s keeps its old certificates: %s", self._listener, e)
        else:
            _log.info("listener %s has new certificates", self._listener)

    def _made(self) -> ssl.SSLContext:
        try:
            return server_context(self._config)
        except InvalidConfig as e:
            raise InvalidConfig(f"listener {self._listener}: {e}") from e

    def _look(self) -> _Stamp:
        paths = (self._config.ssl_keystore_location, self._config.ssl_truststore_location)
        return tuple(_stamp(path) if path is not None else None for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


# --- logins: between a secured listener's network and its handler


class CertificateRefused(KafkaError):
    """No rule maps the name in a client's certificate to a user."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class SecuredSession(authentication.Session):
    """*Not thread-safe: as `Session`.* Admitted after its TLS handshake, its login, or both."""

    __slots__ = ("_rules", "admitted", "login")

    def __init__(
        self, host: str, listener: str, login: authentication.Login | None, rules: Sequence[Rule]
    ) -> None:
        """Without a ``login`` the ``rules`` map the certificate's name to the client's principal."""
        super().__init__(host, listener)
        self.login = login
        self._rules = rules
        self.admitted = False

    def secured(self, tls: ssl.SSLObject) -> None:
        if self.login is not None:
            return
        name = subject_of(tls.getpeercert(binary_form=True))
        if name is None:
            self.principal = authentication.ANONYMOUS
        else:
            user = user_of(name, self._rules)
            if user is None:
                raise CertificateRefused(f"no rule of ssl.principal.mapping.rules matches {name!r}")
            self.principal = authentication.Principal(authentication.USER, user)
        self.admitted = True


@dataclass(eq=False)
class LoginGate:
    """*Thread-safe: its only state is in sessions, each in its processor's thread.* Passes requests to
    ``handler`` after the login. ``after`` runs a function later: for answers to failed logins.
    """

    handler: RequestHandler
    mechanisms: Mapping[str, authentication.Mechanism]
    _: KW_ONLY
    clock: Clock
    metrics: Metrics
    after: Callable[[float, Callable[[], object]], object]
    delay_seconds: float

    def login(self) -> authentication.Login:
        return authentication.Login(self.mechanisms)

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        session: SecuredSession = reply.session
        login = session.login
        if login is None:
            raise RuntimeError("a SASL listener's session has a login")
        if login.is_in(frame) and (login.expires is None or self.clock.monotonic() < login.expires):
            return self.handler(frame, reply)
        if login.may_block:
            # Nothing else touches the login while a worker asks the mechanism.
            reply.work_on(partial(self._work, login, frame, reply))
            return None
        return self._take(login, frame, reply)

    def _work(self, login: authentication.Login, frame: bytearray, reply: Reply) -> None:
        parts = self._take(login, frame, reply)
        if parts is not None:
            reply.send(parts)

    def _take(self, login: authentication.Login, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        session: SecuredSession = reply.session
        step = login.take(frame, self.clock.monotonic(), self.clock.time_ms())
        if step.verdict is authentication.Verdict.SERVE:
            return self.handler(frame, reply)
        if step.verdict is authentication.Verdict.REFUSE:
            self.metrics.logins(session.listener, login.mechanism, "failed").inc()
            _log.info("login from %s at %s failed: %s", reply.peer, session.listener, step.why)
            last = partial(reply.send_last, step.parts) if step.parts is not None else reply.close
            if self.delay_seconds:
                self.after(self.delay_seconds, last)
            else:
                last()
            return None
        if step.accepted and login.principal is not None:
            session.principal, session.admitted = login.principal, True
            self.metrics.logins(session.listener, login.mechanism, "succeeded").inc()
            _log.debug("%s logged in from %s at %s", login.principal, reply.peer, session.listener)
        return step.parts
