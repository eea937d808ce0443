"""SaslAuthenticate 0-2: refused where it has no place, on a listener without SASL or after a login.

Logins are answered by `kafkalog_broker.security.authentication`.
"""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.logins import SaslAuthenticateRequest, SaslAuthenticateResponse
from pyspark_kafkalog.protocol.exchange import ApiKey

_WORDS = "SaslAuthenticate request received after successful authentication"


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), needs=())
def sasl_authenticate(request: SaslAuthenticateRequest, ctx: Context) -> SaslAuthenticateResponse:  # noqa: ARG001
    """Refused, as Kafka does."""
    return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _WORDS, b"", 0)
