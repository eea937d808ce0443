"""One broker over one transport: negotiates versions, matches responses to requests. And a pool of these."""

from __future__ import annotations

import logging
import math
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport, peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionLost,
    ErrorCode,
    FrameTooLarge,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.protocol.exchange import (
    APIS,
    RELEASES,
    SIZE_BYTES,
    ApiKey,
    api_of,
    decode_response,
    encode_request,
)
from pyspark_kafkalog.security.references import resolved

if TYPE_CHECKING:
    from pyspark_kafkalog.client.login.mechanisms import LoginExchange

logger = logging.getLogger(__name__)

Address = tuple[str, int]

REACHED: set[Address] = set()  # addresses to which this process has had a connection; others may be mistakes

_FIRST_API_VERSIONS = 3  # brokers since 2.4 know this version; older ones respond with the versions they know
_SPOKEN_SINCE = {ApiKey.PRODUCE: 3}  # by default; older versions carry message sets, and callers name them

_SECURED = ("SSL", "SASL_SSL")
_CLOSED_BY_CHANCE = 5
_TLS_ALERT = 0x1503  # first two bytes of a TLS alert, with which a TLS port may answer plain text
_RENEWED_BETWEEN = 0.85, 0.95  # fractions of a login's lifetime, as in Kafka's Java clients
_LEAST_PAUSE_SECONDS = 1.0  # minimum between logins of one connection; Kafka refuses earlier ones

_SPOKEN_UP_TO = {
    ApiKey.FETCH: 12,
    ApiKey.PRODUCE: 11,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
"""Newest version chosen by default: later ones use topic ids, are for brokers, or belong to transactions with
an epoch each."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in flight; `Connection.receive` exchanges it for the response."""

    key: ApiKey
    version: int
    correlation_id: int
    sent_at: float
    frame: bytearray | None = field(default=None, repr=False)
    dropped: bool = False
    bare: bool = False
    """A login message for a broker before Kafka 1.0, which has no header, nor has its response."""


class Connection:
    """*Not thread-safe.* One broker, its versions, and the requests in flight; responses may be received in
    any order. After a failure it is closed and `broken`. A login is renewed by a request near its end.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: ClientConfig,
        *,
        deadline: Deadline | None = None,
        clock: Clock = SYSTEM_CLOCK,
        closed_early: dict[Address, int] | None = None,
    ) -> None:
        """``closed_early``: how many connections in a row were closed at the request after ApiVersions."""
        self.host, self.port = host, port
        self._closed_early = {} if closed_early is None else closed_early
        self.peer = peer_name(host, port)
        self.broken = False
        self._failure: KafkaError | None = None
        config = resolved(config, config.option_name)
        self._config, self._clock = config, clock
        self._correlation_id = 0
        self._waiting: deque[Ticket] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._new_login = _logins(config)
        self._exchange: LoginExchange | None = None
        self._login_ticket: Ticket | None = None
        self._renewed_at = self._ends_at = math.inf
        self._held: deque[tuple[Ticket | None, list[Any]]] = deque()
        self._served = False  # whether the broker has answered anything but ApiVersions, which needs no login
        limit = Deadline.limited(deadline, config.connection_setup_timeout_ms / 1000, clock)
        self.transport = self._connected(limit)
        try:
            self._negotiate_versions(limit)
            self._start_login(limit.left)
            self._finish_login(limit)
        except BaseException:
            self.close()
            raise
        REACHED.add((host, port))

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def unsent(self) -> bool:
        """Whether requests of `send_now` wait for the socket or for a login."""
        return self.transport.unsent or bool(self._held)

    @property
    def oldest_sent_at(self) -> float | None:
        return self._waiting[0].sent_at if self._waiting else None

    def version(self, key: ApiKey) -> int:
        low, high = APIS[key].versions
        low, high = _SPOKEN_SINCE.get(key, low), _SPOKEN_UP_TO.get(key, high)
        if key not in self._versions:
            raise UnsupportedVersion(f"{self.peer}: the broker does not serve {key.name}")
        least, most = self._versions[key]
        version = min(high, most)
        if version < max(low, least):
            raise UnsupportedVersion(
                f"{self.peer}: no common version of {key.name}: the broker supports {least} to {most}, "
                f"this client {low} to {high}"
            )
        return version

    def serves(self, key: ApiKey, version: int = 0) -> bool:
        return key in self._versions and self._versions[key][1] >= version

    def served(self, key: ApiKey) -> tuple[int, int] | None:
        return self._versions.get(key)

    def request(self, message: Any, *, deadline: Deadline | None = None) -> Any:
        """Send ``message`` and wait for its response, at most ``request.timeout.ms``."""
        limit = self._limit(deadline)
        return self.receive(self.send(message, deadline=limit), deadline=limit)

    def send(self, message: Any, *, deadline: Deadline | None = None, version: int | None = None) -> Ticket:
        ticket, parts = self._prepare(message, version)
        try:
            if self._must_hold():
                self._held.append((ticket, parts))
                return ticket
            self.transport.send(parts, self._limit(deadline))
        except BaseException:
            # Also on Ctrl-C: half a request may be sent, and nothing would receive its response.
            self.close()
            raise
        self._waiting.append(ticket)
        return ticket

    def receive(self, ticket: Ticket, *, deadline: Deadline | None = None) -> Any:
        """The response to ``ticket``; keeps those of earlier requests for their own `receive`."""
        limit = self._limit(deadline)
        try:
            while ticket.frame is None:
                self._match(self._next_frame(limit))
            return self._decode(ticket)
        except ConnectionClosed as e:
            self.close()
            raise self._explained(e, ticket) from e
        except KafkaError:
            self.close()
            raise

    def drop(self, ticket: Ticket) -> None:
        ticket.dropped, ticket.frame = True, None

    def send_now(self, message: Any, *, answered: bool = True, version: int | None = None) -> Ticket:
        """Queue ``message``, send what the socket accepts; ``answered``: whether it has a response."""
        ticket, parts = self._prepare(message, version)
        try:
            if self._must_hold():
                self._held.append((ticket if answered else None, parts))
                return ticket
            self.transport.send_now(parts)
        except KafkaError:
            self.close()
            raise
        if answered:
            self._waiting.append(ticket)
        return ticket

    def flush_now(self) -> bool:
        try:
            return self.transport.send_now()
        except KafkaError:
            self.close()
            raise

    def receive_now(self) -> list[tuple[Ticket, Any]]:
        """The responses that have arrived, in order. If a failure follows some, the next call raises it."""
        answers: list[tuple[Ticket, Any]] = []
        try:
            if self._failure is not None:
                raise self._failure
            for frame in self.transport.receive_now():
                ticket = self._match(frame)
                if not ticket.dropped:
                    answers.append((ticket, self._decode(ticket)))
        except KafkaError as e:
            self.close()
            if not answers:
                raise
            self._failure = e
        return answers

    def close(self) -> None:
        self.broken = True
        self.transport.close()

    def _explained(self, error: ConnectionClosed, ticket: Ticket) -> KafkaError:
        """``error`` with a hint at a missing login, if it follows the first request after ApiVersions. A
        stopping broker does so too, but not again and again.
        """
        if self._served or self._new_login is not None or ticket.key == ApiKey.API_VERSIONS:
            return error
        option = self._config.option_name("security.protocol")
        secured = "SASL_SSL" if self._config.security_protocol == "SSL" else "SASL_PLAINTEXT or SASL_SSL"
        address = self.host, self.port
        self._closed_early[address] = self._closed_early.get(address, 0) + 1
        final = self._closed_early[address] > _CLOSED_BY_CHANCE
        return (AuthenticationFailed if final else ConnectionClosed)(
            f"{error} after ApiVersions, as it does if it wants a login: then set {option} to {secured}"
        )

    def _limit(self, deadline: Deadline | None) -> Deadline:
        return Deadline.limited(deadline, self._config.request_timeout_ms / 1000, self._clock)

    def _prepare(self, message: Any, version: int | None) -> tuple[Ticket, list[Any]]:
        key = api_of(type(message)).key
        version = self.version(key) if version is None else version
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        ticket = Ticket(key, version, self._correlation_id, self._clock.monotonic())
        parts = encode_request(
            message, version=version, correlation_id=ticket.correlation_id, client_id=self._config.client_id
        )
        return ticket, parts

    def _next_frame(self, deadline: Deadline) -> bytearray:
        if self.broken:
            raise ConnectionLost(f"{self.peer}: the connection is closed")
        if self.transport.unsent:
            self.transport.send((), deadline)
        return self.transport.receive(deadline)

    def _match(self, frame: bytearray) -> Ticket:
        if not self._waiting:
            raise InvalidRequest(f"{self.peer}: a response arrived without a request")
        ticket = self._waiting.popleft()
        if ticket.bare:
            self._continue_login(ticket, frame)
            return ticket
        if len(frame) < 4:
            raise InvalidRequest(f"{self.peer}: a response of {len(frame)} bytes has no correlation id")
        found = int.from_bytes(frame[:4], "big", signed=True)
        if found != ticket.correlation_id:
            raise InvalidRequest(
                f"{self.peer}: the response to {ticket.key.name} v{ticket.version} has correlation id "
                f"{found} instead of {ticket.correlation_id}"
            )
        if not self._served and ticket.key != ApiKey.API_VERSIONS:
            self._served = True
            self._closed_early.pop((self.host, self.port), None)
        if ticket is self._login_ticket:
            self._continue_login(ticket, frame)
        elif not ticket.dropped:
            ticket.frame = frame
        return ticket

    def _must_hold(self) -> bool:
        """Whether a request must wait for a login; starts one if it is due."""
        if self._exchange is None and self._clock.monotonic() >= self._renewed_at:
            self._start_login(self._config.connection_setup_timeout_ms / 1000)
        return self._exchange is not None

    def _start_login(self, seconds: float) -> None:
        if self._new_login is None:
            return
        try:
            exchange = self._new_login(self.peer, self.host, seconds)
        except ConnectionLost as e:
            now = self._clock.monotonic()
            if now >= self._ends_at or self._ends_at == math.inf:
                raise
            logger.warning("%s: the login is not renewed yet: %s", self.peer, e)
            self._renewed_at = now + max(_LEAST_PAUSE_SECONDS, (self._ends_at - now) / 2)
            return
        self._exchange = exchange
        self._send_login(exchange.begin(bare=self._logs_in_bare))

    @property
    def _logs_in_bare(self) -> bool:
        return not self.serves(ApiKey.SASL_HANDSHAKE, 1)

    def _finish_login(self, deadline: Deadline) -> None:
        while self._exchange is not None:
            try:
                frame = self._next_frame(deadline)
            except ConnectionClosed as e:
                if self._login_ticket is None or not self._login_ticket.bare:
                    raise
                raise self._exchange.refused_without_a_word(str(e)) from e
            self._match(frame)

    def _send_login(self, message: Any) -> None:
        if api_of(type(message)).key == ApiKey.SASL_AUTHENTICATE and self._logs_in_bare:
            token = message.auth_bytes
            ticket = Ticket(ApiKey.SASL_AUTHENTICATE, 0, 0, self._clock.monotonic(), bare=True)
            parts: list[Any] = [len(token).to_bytes(SIZE_BYTES, "big"), token]
        else:
            ticket, parts = self._prepare(message, None)
        ticket.dropped, self._login_ticket = True, ticket
        self.transport.send_now(parts)
        self._waiting.append(ticket)

    def _continue_login(self, ticket: Ticket, frame: bytearray) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if ticket.bare:
            message = exchange.answered_bare(bytes(frame))
        else:
            ticket.frame = frame
            message = exchange.answered(self._decode(ticket))
        if message is not None:
            self._send_login(message)
            return
        self._exchange = self._login_ticket = None
        lifetime = exchange.lifetime_ms / 1000
        if lifetime > 0:
            self._ends_at = ticket.sent_at + lifetime
            after = max(lifetime * random.uniform(*_RENEWED_BETWEEN), _LEAST_PAUSE_SECONDS)
            self._renewed_at = ticket.sent_at + after
        else:
            self._renewed_at = self._ends_at = math.inf
        held, self._held = self._held, deque()
        for waiting, parts in held:
            self.transport.send_now(parts)
            if waiting is not None:
                self._waiting.append(waiting)

    def _decode(self, ticket: Ticket) -> Any:
        frame, ticket.frame = ticket.frame, None
        if frame is None:
            raise InvalidRequest(f"{self.peer}: the response to {ticket.key.name} was already received")
        try:
            return decode_response(ticket.key, ticket.version, frame)[1]
        except KafkaError as e:
            raise InvalidRequest(
                f"{self.peer}: the response to {ticket.key.name} v{ticket.version} cannot be read: {e}"
            ) from e

    def _connected(self, deadline: Deadline) -> Transport:
        config = self._config
        kind = Transport
        if config.security_protocol in _SECURED:
            from pyspark_kafkalog.client.tls_transport import TlsTransport  # imports ssl

            kind = TlsTransport
        transport = kind.connect(
            self.host,
            self.port,
            deadline,
            max_frame_bytes=config.max_response_bytes,
            send_buffer_bytes=config.send_buffer_bytes,
            receive_buffer_bytes=config.receive_buffer_bytes,
        )
        try:
            transport.start(self.host, config, deadline)
        except ConnectionLost as e:
            transport.close()
            from pyspark_kafkalog.client.tls_transport import no_tls, speaks_plain

            if speaks_plain(self.host, self.port, deadline):
                raise no_tls(self.peer, config) from e
            raise
        except BaseException:
            transport.close()
            raise
        return transport

    def _negotiate_versions(self, deadline: Deadline) -> None:
        release = self._config.fallback_release
        if self._config.api_version_request:
            # Kafka 0.9 never responds; other old releases close the connection.
            first = deadline if release is None else deadline.within(deadline.left / 4)
            try:
                self._versions = self._requested_versions(first)
                return
            except FrameTooLarge as e:
                if e.size >> 16 != _TLS_ALERT:
                    raise
                raise self._needs_tls() from e
            except ConnectionLost as e:
                if release is None:
                    if not isinstance(e, ConnectionClosed):
                        # A broker of 0.9 does not respond, but neither does an overloaded one.
                        raise ConnectionLost(f"{e}; only for Kafka 0.9, set broker.version.fallback") from e
                    if self._config.security_protocol not in _SECURED and self._speaks_tls(deadline):
                        raise self._needs_tls() from e
                    raise ConnectionLost(
                        f"{e} after ApiVersions, which Kafka before 0.10 does not know. "
                        f"Set broker.version.fallback to its release: {', '.join(RELEASES)}"
                    ) from e
                logger.info(
                    "%s after ApiVersions: using Kafka %s, as broker.version.fallback says; "
                    "api.version.request=false skips the request",
                    e,
                    release,
                )
            self._waiting.clear()
            self.transport = self._connected(deadline)
            self.broken = False
        if release is not None:
            self._versions = {int(key): versions for key, versions in RELEASES[release].items()}

    def _speaks_tls(self, deadline: Deadline) -> bool:
        from pyspark_kafkalog.client.tls_transport import speaks_tls  # imports ssl

        return speaks_tls(self.host, self.port, deadline)

    def _needs_tls(self) -> AuthenticationFailed:
        option = self._config.option_name("security.protocol")
        return AuthenticationFailed(f"{self.peer}: this port speaks TLS: set {option} to SSL or SASL_SSL")

    def _requested_versions(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        answer = self._ask_versions(_FIRST_API_VERSIONS, deadline)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [entry.max_version for entry in answer.api_keys if entry.api_key == ApiKey.API_VERSIONS]
            retry = min(max(known, default=0), _FIRST_API_VERSIONS - 1)
            logger.debug("%s does not know ApiVersions %d, trying %d", self.peer, _FIRST_API_VERSIONS, retry)
            answer = self._ask_versions(max(retry, 0), deadline)
        if answer.error_code != ErrorCode.NONE:
            raise InvalidRequest(f"{self.peer}: ApiVersions failed: {answer.error_code.name}")
        return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}

    def _ask_versions(self, version: int, deadline: Deadline) -> ApiVersionsResponse:
        # For the broker's log; brokers refuse an empty version, and a "+" before a build's commit.
        own_version = str(getattr(sys.modules.get("pyspark_kafkalog"), "__version__", "0")).partition("+")[0]
        request = ApiVersionsRequest("pyspark-kafkalog", own_version)
        ticket = self.send(request, deadline=deadline, version=version)
        answer: ApiVersionsResponse = self.receive(ticket, deadline=deadline)
        return answer


def _logins(config: ClientConfig) -> Callable[[str, str, float], LoginExchange] | None:
    """Makes a login for a peer, host and seconds; None without SASL, whose modules then stay unloaded."""
    if not config.security_protocol.startswith("SASL_"):
        return None
    from pyspark_kafkalog.client.login.mechanisms import LoginExchange, login_of

    return partial(LoginExchange, login_of(config))


class ConnectionPool:
    """*Not thread-safe: belongs to one `Cluster`.* At most one usable connection per address."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config, self._clock = config, clock
        self._open: dict[Address, Connection] = {}
        self._closed_early: dict[Address, int] = {}

    def get(self, address: Address, deadline: Deadline) -> Connection:
        connection = self.existing(address)
        if connection is None:
            connection = Connection(
                *address, self._config, deadline=deadline, clock=self._clock, closed_early=self._closed_early
            )
            self._open[address] = connection
        return connection

    def existing(self, address: Address) -> Connection | None:
        connection = self._open.get(address)
        if connection is not None and connection.broken:
            del self._open[address]
            return None
        return connection

    def any_existing(self) -> Connection | None:
        """An open connection to any broker, preferably without requests in flight."""
        usable = [connection for address in list(self._open) if (connection := self.existing(address))]
        return min(usable, key=lambda connection: connection.in_flight, default=None)

    def drop_lost(self) -> None:
        for address in list(self._open):
            connection = self.existing(address)
            if connection is not None:
                try:
                    connection.receive_now()
                except KafkaError:
                    del self._open[address]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()
