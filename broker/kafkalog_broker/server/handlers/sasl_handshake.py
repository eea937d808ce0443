"""SaslHandshake 0-1: refused where it has no place, on a listener without SASL or after a login.

The handshakes that begin and renew a login are answered by `kafkalog_broker.security.authentication`.
"""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.logins import SaslHandshakeRequest, SaslHandshakeResponse
from pyspark_kafkalog.protocol.exchange import ApiKey


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1), needs=())
def sasl_handshake(request: SaslHandshakeRequest, ctx: Context) -> SaslHandshakeResponse:  # noqa: ARG001
    """Refused, as Kafka does."""
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, ())
