"""Who a client is, and its login over SASL, without I/O: takes frames and the time, returns what to do. Also
PLAIN and SCRAM.

Kafka's order: ApiVersions at most once, SaslHandshake, then the mechanism's messages until it accepts one:
SaslAuthenticate requests after SaslHandshake 1, bare frames after SaslHandshake 0. A refusal ends the
connection. Another SaslHandshake renews a login with a limited lifetime (KIP-368). Source: protocol guide,
SASL Authentication Sequence; Apache Kafka's ``SaslServerAuthenticator``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol, cast

from kafkalog_broker.security.file_stores import Credentials, CredentialStore
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api import logins as api
from pyspark_kafkalog.protocol.exchange import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
)
from pyspark_kafkalog.security.jaas import parse_jaas
from pyspark_kafkalog.security.scram import MIN_ITERATIONS, ScramCredential, ScramError, ScramServer

USER = "User"


class Principal(NamedTuple):
    """A client's identity, written as in Kafka: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""A client without a login or certificate."""


def parse_principal(text: str) -> Principal:
    """Parse ``User:alice``; the name may contain colons. Raises `ValueError`: kind or name is missing."""
    kind, colon, name = text.strip().partition(":")
    if not kind or not colon or not name:
        raise ValueError(f"{text!r} is not a principal; write {USER}:name")
    return Principal(kind, name)


@dataclass(slots=True, eq=False)
class Session:
    """*Not thread-safe: changed by its connection's processor thread, between two requests.* ``host`` is the
    client's address as Java prints it and ACLs name it: ``127.0.0.1``, ``0:0:0:0:0:0:0:1``.
    """

    host: str
    listener: str
    principal: Principal = ANONYMOUS


def java_address(host: str) -> str:
    """A socket address as Java prints it: IPv6 in full, IPv4-mapped addresses as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


# --- the login

_RENEWAL_SECONDS = 1.0
"""Least time between renewals of a login."""

_SIZE_BYTES = 4

Parts = Sequence[bytes | bytearray | memoryview]
"""A response with its size prefix."""


class LoginRefused(KafkaError):
    """Wrong credentials or an unreadable message; the client gets the text."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class Challenge(NamedTuple):
    """The login needs another message from the client."""

    token: bytes


class Accepted(NamedTuple):
    """The client is ``principal``, for ``lifetime_ms`` unless that is None."""

    principal: Principal
    token: bytes = b""
    lifetime_ms: int | None = None


class Exchange(Protocol):
    """*Not thread-safe.* One login attempt."""

    def evaluate(self, token: bytes, now_ms: int) -> Challenge | Accepted:
        """Take the client's next message. Raises `LoginRefused`."""
        ...


class Mechanism(Protocol):
    """*Thread-safe.* A SASL mechanism with its users."""

    max_lifetime_ms: int
    """``connections.max.reauth.ms``; 0 for no limit."""
    may_block: bool
    """Whether `Exchange.evaluate` may take long."""

    def begin(self) -> Exchange: ...


class Verdict(Enum):
    SERVE = auto()
    """Handle it as any request."""
    ANSWER = auto()
    """Send the given answer."""
    REFUSE = auto()
    """Send the answer, if any, and close the connection, after a delay."""


class LoginStep(NamedTuple):
    """The verdict on a request, and the parts of its answer."""

    verdict: Verdict
    parts: Parts | None = None
    why: str = ""
    """Reason of a refusal, for the log; holds no secret."""
    accepted: bool = False
    """Whether this answer completes a login or its renewal."""


_SERVE = LoginStep(Verdict.SERVE)


class _State(Enum):
    VERSIONS = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    BARE_TOKENS = auto()
    IN = auto()
    OVER = auto()


class Login:
    """*Not thread-safe: one connection's.* Its login and renewals."""

    def __init__(self, mechanisms: Mapping[str, Mechanism]) -> None:
        self._mechanisms = mechanisms
        self._state = _State.VERSIONS
        self._exchange: Exchange | None = None
        self._began = 0.0
        self.mechanism = ""
        self.principal: Principal | None = None
        """The client's principal; None before the login."""
        self.expires: float | None = None
        """Monotonic time at which the login ends; None for never."""

    def is_in(self, frame: bytearray) -> bool:
        """Whether it is logged in and this is no SaslHandshake; ignores `expires`."""
        return self._state is _State.IN and frame[:2] != _HANDSHAKE_KEY

    @property
    def may_block(self) -> bool:
        return (
            self._state in (_State.TOKENS, _State.BARE_TOKENS) and self._mechanisms[self.mechanism].may_block
        )

    def take(self, frame: bytearray, now: float, now_ms: int) -> LoginStep:
        """What to do with a request; ``now`` is monotonic, in seconds. Never raises."""
        try:
            return self._take(frame, now, now_ms)
        except KafkaError as e:
            self._state = _State.OVER
            return LoginStep(Verdict.REFUSE, None, str(e))

    def _take(self, frame: bytearray, now: float, now_ms: int) -> LoginStep:
        if self._state is _State.BARE_TOKENS:
            return self._token(None, bytes(frame), now, now_ms)
        header, pos = decode_header(frame)
        key = header.api_key
        if self._state is _State.IN:
            if key != ApiKey.SASL_HANDSHAKE:
                if self.expires is not None and now >= self.expires:
                    return self._over(f"the login of {self.principal} is over, and was not renewed")
                return _SERVE
            return self._renew(header, frame, pos, now)
        if key == ApiKey.API_VERSIONS and self._state is _State.VERSIONS:
            if header.api_version in APIS[ApiKey.API_VERSIONS].versions:
                self._state = _State.HANDSHAKE
            return _SERVE
        if key == ApiKey.SASL_HANDSHAKE and self._state in (_State.VERSIONS, _State.HANDSHAKE):
            return self._handshake(header, frame, pos)
        if key == ApiKey.SASL_AUTHENTICATE and self._state is _State.TOKENS:
            _check_version(header)
            request: api.SaslAuthenticateRequest = decode_request(header, frame, pos)
            return self._token(header, bytes(request.auth_bytes), now, now_ms)
        if key == ApiKey.SASL_HANDSHAKE and self._state is _State.TOKENS:
            answer = api.SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, tuple(self._mechanisms))
            return self._over("SaslHandshake within a login", _encoded(header, answer))
        return self._over(f"{_name(key)} is not allowed before the login")

    def _handshake(self, header: RequestHeader, frame: bytearray, pos: int) -> LoginStep:
        _check_version(header)
        request: api.SaslHandshakeRequest = decode_request(header, frame, pos)
        offered = tuple(self._mechanisms)
        if request.mechanism not in self._mechanisms:
            answer = api.SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered)
            return self._over(
                f"it asked for mechanism {request.mechanism[:40]!r}; sasl.enabled.mechanisms has "
                f"{','.join(offered)}",
                _encoded(header, answer),
            )
        self.mechanism = request.mechanism
        self._exchange = self._mechanisms[request.mechanism].begin()
        self._state = _State.TOKENS if header.api_version else _State.BARE_TOKENS
        return LoginStep(Verdict.ANSWER, _encoded(header, api.SaslHandshakeResponse(ErrorCode.NONE, offered)))

    def _renew(self, header: RequestHeader, frame: bytearray, pos: int, now: float) -> LoginStep:
        if self.expires is None or now - self._began < _RENEWAL_SECONDS:
            answer = api.SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, tuple(self._mechanisms))
            return LoginStep(Verdict.ANSWER, _encoded(header, answer))
        before = self.mechanism
        step = self._handshake(header, frame, pos)
        if step.verdict is Verdict.ANSWER and self.mechanism != before:
            return self._over(f"it changed from mechanism {before} to {self.mechanism}")
        return step

    def _token(self, header: RequestHeader | None, token: bytes, now: float, now_ms: int) -> LoginStep:
        """Without a ``header`` the token came as a bare frame, and so does the answer."""
        try:
            result = self._evaluate(token, now_ms)
        except LoginRefused as e:
            if header is None:
                return self._over(str(e))
            return self._over(str(e), _encoded(header, api.SaslAuthenticateResponse(e.code, str(e), b"", 0)))
        lifetime_ms = self._lifetime(result, now)
        if header is None:
            parts: Parts = [len(result.token).to_bytes(_SIZE_BYTES, "big"), result.token]
        else:
            answer = api.SaslAuthenticateResponse(ErrorCode.NONE, None, result.token, lifetime_ms)
            parts = _encoded(header, answer)
        return LoginStep(Verdict.ANSWER, parts, accepted=isinstance(result, Accepted))

    def _evaluate(self, token: bytes, now_ms: int) -> Challenge | Accepted:
        if self._exchange is None:
            raise LoginRefused("no mechanism was chosen")
        result = self._exchange.evaluate(token, now_ms)
        if isinstance(result, Accepted) and self.principal not in (None, result.principal):
            before, after = self.principal, result.principal
            raise LoginRefused(
                "Cannot change principals during re-authentication from "
                f"{before.kind if before else ''}.{before.name if before else ''}: {after.kind}.{after.name}"
            )
        return result

    def _lifetime(self, result: Challenge | Accepted, now: float) -> int:
        """Complete the login if accepted; returns its lifetime in ms, 0 for no limit."""
        if isinstance(result, Challenge):
            return 0
        self._state, self._exchange = _State.IN, None
        self.principal, self._began = result.principal, now
        limits = [self._mechanisms[self.mechanism].max_lifetime_ms or None, result.lifetime_ms]
        lifetime_ms = min((each for each in limits if each is not None), default=None)
        self.expires = None if lifetime_ms is None else now + lifetime_ms / 1000
        return lifetime_ms or 0

    def _over(self, why: str, parts: Parts | None = None) -> LoginStep:
        self._state, self._exchange = _State.OVER, None
        return LoginStep(Verdict.REFUSE, parts, why)


_HANDSHAKE_KEY = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")


def _check_version(header: RequestHeader) -> None:
    if header.api_version not in APIS[ApiKey(header.api_key)].versions:
        raise InvalidRequest(f"{_name(header.api_key)} version {header.api_version} is not served")


def _encoded(header: RequestHeader, answer: object) -> Parts:
    parts = encode_response(answer, version=header.api_version, correlation_id=header.correlation_id)
    return cast("Parts", parts)


def _name(key: int) -> str:
    try:
        return ApiKey(key).name
    except ValueError:
        return f"API {key}"


# --- PLAIN and SCRAM

_USER_OPTION = "user_"
_ANOTHER = "Authentication failed: Client requested an authorization id that is different from username"


class Plain:
    """*Thread-safe: immutable.* User and password in the clear, so for TLS only. Source: RFC 4616."""

    may_block = False

    def __init__(self, passwords: Mapping[str, str], max_lifetime_ms: int = 0) -> None:
        self._passwords = {user: password.encode() for user, password in passwords.items()}
        self._nobodys = secrets.token_bytes(16)
        self.max_lifetime_ms = max_lifetime_ms

    def begin(self) -> Exchange:
        return self

    def evaluate(self, token: bytes, now_ms: int) -> Accepted:  # noqa: ARG002 - the protocol's
        """``[authorization id] 00 user 00 password`` in UTF-8. Raises `LoginRefused` with Kafka's texts."""
        try:
            parts = token.decode().split("\0", 3)
        except UnicodeDecodeError:
            raise LoginRefused("Invalid SASL/PLAIN response: it is not UTF-8") from None
        if len(parts) != 3:
            raise LoginRefused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        acts_for, user, password = parts
        if not user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified")
        known = self._passwords.get(user)
        if not hmac.compare_digest(self._nobodys if known is None else known, password.encode()):
            raise LoginRefused("Authentication failed: Invalid username or password")
        if acts_for not in ("", user):
            raise LoginRefused(_ANOTHER)
        return Accepted(Principal(USER, user))


def plain_passwords(jaas_config: str | None, source: str) -> dict[str, str]:
    """The passwords in PLAIN's ``sasl.jaas.config``, by user. Raises `InvalidConfig`, without its content."""
    wanted = f'{source}=...PlainLoginModule required user_alice="..." user_bob="...";'
    if jaas_config is None:
        raise InvalidConfig(f"PLAIN needs its users: {wanted}")
    try:
        options = parse_jaas(jaas_config).options
    except ValueError as e:
        raise InvalidConfig(f"{source}: {e}") from e
    found = {
        name.removeprefix(_USER_OPTION): password
        for name, password in options.items()
        if name.startswith(_USER_OPTION) and password
    }
    if not found:
        raise InvalidConfig(f"{source} has no users; write {wanted}")
    return found


_Shape = tuple[tuple[str, tuple[int, int]], ...]
"""What a server's challenges show of a user: by mechanism, bytes of salt (or `_JAVA_SALT`) and iterations."""

_SHAPE_WITHOUT_USERS: _Shape = (("SCRAM-SHA-256", (24, MIN_ITERATIONS)),)  # those of add-user
_MAX_SHAPES = 64
"""Unknown users get one of the most frequent ones, so that a login takes little time with any users."""

_JAVA_SALT = 0
"""Kafka's Java clients salt with a number of 130 bits in base 36, as text."""
_JAVA_SALT_TEXT = re.compile(rb"[1-9a-z][0-9a-z]{19,25}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Scram:
    """*Thread-safe.* SCRAM-SHA-256 or -512, which proves the password without sending it.

    Clients cannot find out which users exist. The salt and iterations of an unknown one derive from the name
    and the store's secret, which all listeners and brokers have, and are shaped like those of a real user. A
    new shape changes only the unknown names that get it (rendezvous hashing).
    """

    may_block = False

    def __init__(self, name: str, users: CredentialStore, max_lifetime_ms: int = 0) -> None:
        """Raises `KafkaError`: the secret cannot be read or created."""
        self.name = name
        self._users = users
        self._secret = users.secret()
        self._shapes: tuple[Credentials | None, Sequence[_Shape]] = (None, ())
        self.max_lifetime_ms = max_lifetime_ms

    def begin(self) -> Exchange:
        return _ScramExchange(self)

    def credential(self, user: str) -> ScramCredential:
        """That of the user, or a fake one. Both take the same time, which would tell them apart too."""
        users = self._users.all()
        own = users.get(user, {})
        drawn = max(self._all_shapes(users), key=lambda shape: self._derived(user, shape))
        fake = self._fake(user, _shape_of(own) or drawn)
        return own.get(self.name, fake)

    def _fake(self, user: str, shape: _Shape) -> ScramCredential:
        salt_bytes, iterations = dict(shape).get(self.name, shape[0][1])
        key = self._derived(user, self.name, salt_bytes, iterations)
        if salt_bytes == _JAVA_SALT:
            salt = _base36(int.from_bytes(key, "big") >> len(key) * 8 - 130)
        else:
            salt = hashlib.shake_256(key).digest(salt_bytes)
        return ScramCredential(salt, secrets.token_bytes(64), secrets.token_bytes(64), iterations)

    def _derived(self, *parts: object) -> bytes:
        return hmac.digest(self._secret, repr(parts).encode(), "sha256")

    def _all_shapes(self, users: Credentials) -> Sequence[_Shape]:
        known, shapes = self._shapes
        if known is not users:
            counts = Counter(filter(None, map(_shape_of, users.values())))
            shapes = sorted(counts, key=lambda each: (-counts[each], each))[:_MAX_SHAPES]
            shapes = shapes or [_SHAPE_WITHOUT_USERS]
            self._shapes = users, shapes
        return shapes

    def refused(self) -> LoginRefused:
        return LoginRefused(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            + self.name
        )


def _shape_of(credentials: Mapping[str, ScramCredential]) -> _Shape:
    return tuple(
        (mechanism, (_JAVA_SALT if _JAVA_SALT_TEXT.fullmatch(each.salt) else len(each.salt), each.iterations))
        for mechanism, each in sorted(credentials.items())
    )


def _base36(number: int) -> bytes:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text.encode()


class _ScramExchange:
    """*Not thread-safe: one login.*"""

    def __init__(self, mechanism: Scram) -> None:
        self._mechanism = mechanism
        self._server: ScramServer | None = None

    def evaluate(self, token: bytes, now_ms: int) -> Challenge | Accepted:  # noqa: ARG002 - the protocol's
        try:
            if self._server is None:
                self._server = server = ScramServer(self._mechanism.name)
                user = server.read_first(token)
                if server.authorization_id not in ("", user):
                    raise LoginRefused(_ANOTHER)
                if server.token:  # a delegation token; this broker has none
                    raise self._mechanism.refused()
                return Challenge(server.first(self._mechanism.credential(user)))
            return Accepted(Principal(USER, self._server.user), self._server.final(token))
        except ScramError:
            raise self._mechanism.refused() from None
