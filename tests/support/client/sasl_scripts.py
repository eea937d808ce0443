"""What a scripted broker answers to logins."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.logins import SaslAuthenticateResponse, SaslHandshakeResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.scram import ScramCredential, ScramServer
from tests.support.client.scripted_broker import ScriptedBroker

MECHANISMS = ("PLAIN", "SCRAM-SHA-256")


def accept_logins(broker: ScriptedBroker, *, lifetime_ms: int = 0) -> None:
    """Accept any login of one message, as of PLAIN."""
    broker.default(ApiKey.SASL_HANDSHAKE, SaslHandshakeResponse(ErrorCode.NONE, MECHANISMS))
    broker.default(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


def refuse_logins(broker: ScriptedBroker, message: str) -> None:
    accept_logins(broker)
    refusal = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    broker.default(ApiKey.SASL_AUTHENTICATE, refusal)


def script_scram(
    broker: ScriptedBroker, mechanism: str, password: str, *, server_key: bytes | None = None
) -> None:
    """One login by SCRAM; with ``server_key`` by a server that does not know the password."""
    broker.default(ApiKey.SASL_HANDSHAKE, SaslHandshakeResponse(ErrorCode.NONE, MECHANISMS))
    known = ScramCredential.of_password(mechanism, password, salt=b"salt", iterations=4096)
    if server_key is not None:
        known = ScramCredential(known.salt, known.stored_key, server_key, known.iterations)
    server = ScramServer(mechanism)

    def first(request: Any) -> SaslAuthenticateResponse:
        server.read_first(request.auth_bytes)
        return SaslAuthenticateResponse(auth_bytes=server.first(known))

    def final(request: Any) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(auth_bytes=server.final(request.auth_bytes))

    broker.script(ApiKey.SASL_AUTHENTICATE, first, final)
