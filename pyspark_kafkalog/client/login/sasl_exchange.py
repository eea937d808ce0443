"""A SASL login as requests and responses, without I/O: SaslHandshake, then SaslAuthenticate until done."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyspark_kafkalog.client.login.mechanisms import Login
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    ErrorCode,
    IllegalSaslState,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api.logins import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.security.scram import ScramError


class LoginExchange:
    """*Not thread-safe: one login of one connection.* Call `begin`, then `answered` for each response."""

    def __init__(self, login: Login, peer: str, host: str, seconds: float) -> None:
        """Prepare the first message in ``seconds``. Raises `ConnectionLost` if there is no token now."""
        self._login, self._peer = login, peer
        self._conversation: Generator[bytes, bytes, None] = login.start(host, seconds)
        self._message: bytes | None = next(self._conversation)
        self.lifetime_ms = 0  # after the login: milliseconds until the next one is required; 0 for never

    def begin(self, *, bare: bool = False) -> SaslHandshakeRequest:
        """The first request. ``bare``: for a broker before Kafka 1.0, which cannot end a GSSAPI login."""
        if bare and self._login.mechanism == "GSSAPI":
            raise UnsupportedVersion(
                f"{self._peer}: {self._login.mechanism} needs brokers of Kafka 1.0 or later"
            )
        return SaslHandshakeRequest(mechanism=self._login.mechanism)

    def answered(self, response: Any) -> SaslAuthenticateRequest | None:
        """The next request; None once logged in. Raises `AuthenticationFailed`."""
        if isinstance(response, SaslHandshakeResponse):
            self._check_handshake(response)
        else:
            self._take(response)
        return None if self._message is None else SaslAuthenticateRequest(auth_bytes=self._message)

    def answered_bare(self, token: bytes) -> SaslAuthenticateRequest | None:
        """As `answered`, for brokers before Kafka 1.0, whose login messages have no Kafka header."""
        return self.answered(SaslAuthenticateResponse(auth_bytes=token))

    def refused_without_a_word(self, reason: str) -> AuthenticationFailed:
        """The error for such a broker, which refuses a login by closing the connection."""
        login = self._login
        return AuthenticationFailed(
            f"{reason} within the {login.mechanism} login, as brokers before Kafka 1.0 refuse one; check "
            f"{login.check}"
        )

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        login = self._login
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            served = ", ".join(response.mechanisms) or "none"
            raise UnsupportedSaslMechanism(
                f"{self._peer}: the broker does not support {login.mechanism}; it supports {served}. "
                f"Set {login.mechanism_option}"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise IllegalSaslState(
                f"{self._peer}: this listener has no SASL: connect to another port, or set "
                f"{login.protocol_option} to {login.protocol_without}"
            )
        if response.error_code != ErrorCode.NONE:
            raise AuthenticationFailed(f"{self._peer}: SaslHandshake failed: {response.error_code.name}")

    def _take(self, response: SaslAuthenticateResponse) -> None:
        login = self._login
        if response.error_code != ErrorCode.NONE:
            said = login.without_secrets(response.error_message or response.error_code.name)
            raise AuthenticationFailed(
                f"{self._peer}: the broker refused the {login.mechanism} login: {said}; check {login.check}"
            )
        try:
            self._message = self._conversation.send(response.auth_bytes)
        except StopIteration:
            self._message, self.lifetime_ms = None, max(response.session_lifetime_ms, 0)
        except ScramError as e:
            reason = login.without_secrets(str(e))
            raise AuthenticationFailed(
                f"{self._peer}: the {login.mechanism} login failed: {reason}; check {login.check}"
            ) from None
