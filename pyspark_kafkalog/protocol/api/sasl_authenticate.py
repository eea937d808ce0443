"""SaslAuthenticate, versions 0-2: one message of the mechanism, and the other side's.

Flexible from 2. Left out: nothing. Source: protocol guide, SaslAuthenticate; KIP-152, KIP-368 (lifetime).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BYTES, ERROR_CODE, INT64, STRING, wire


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest:
    """``auth_bytes`` may hold a password: it has no place in a ``repr``."""

    auth_bytes: bytes = wire(BYTES)

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse:
    """``session_lifetime_ms`` is the time until the client must log in again; 0 is for ever."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    auth_bytes: bytes = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, 1, ignorable=True)
