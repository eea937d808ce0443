"""SaslHandshake, versions 0-1: the client names the mechanism it will log in with.

Never flexible. After version 0 the mechanism's messages follow as bare frames, after version 1 as
SaslAuthenticate requests. Left out: nothing. Source: protocol guide, SaslHandshake; KIP-43, KIP-152.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    mechanism: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse:
    """``mechanisms`` are those of the listener, whether or not the requested one is among them."""

    error_code: ErrorCode = wire(ERROR_CODE)
    mechanisms: tuple[str, ...] = wire(Array(STRING))
