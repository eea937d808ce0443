"""PLAIN and SCRAM on the broker's side. Pure."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping

from kafkalog_broker.security.authentication import (
    USER,
    Accepted,
    Challenge,
    Exchange,
    LoginRefused,
    Principal,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.jaas import parse_jaas
from pyspark_kafkalog.security.scram import MIN_ITERATIONS, ScramCredential, ScramError, ScramServer

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


class Scram:
    """*Thread-safe.* SCRAM-SHA-256 or -512, which proves the password without sending it."""

    may_block = False

    def __init__(
        self, name: str, lookup: Callable[[str, str], ScramCredential | None], max_lifetime_ms: int = 0
    ) -> None:
        self._name = name
        self._lookup = lookup
        self._secret = secrets.token_bytes(32)
        self.max_lifetime_ms = max_lifetime_ms

    def begin(self) -> Exchange:
        return _ScramExchange(self)

    def credential(self, user: str) -> ScramCredential:
        """For an unknown user a fake one with a constant salt, so that clients cannot find out which users
        exist.
        """
        known = self._lookup(self._name, user)
        if known is not None:
            return known
        salt = hmac.digest(self._secret, user.encode(), "sha256")[:16]
        return ScramCredential(salt, secrets.token_bytes(64), secrets.token_bytes(64), MIN_ITERATIONS)

    def refused(self) -> LoginRefused:
        return LoginRefused(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            + self._name
        )

    @property
    def name(self) -> str:
        return self._name


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
