"""SASL logins, and SCRAM users.

API                           Versions  Flexible from  Left out
----------------------------  --------  -------------  --------
SaslHandshake                 0-1       never          nothing
SaslAuthenticate              0-2       2              nothing
DescribeUserScramCredentials  0         0              nothing
AlterUserScramCredentials     0         0              nothing

SaslHandshake names the mechanism, whose messages follow as bare frames (version 0) or as SaslAuthenticate
requests (1). DescribeUserScramCredentials without users, or with null, describes all. SCRAM mechanism 1 is
SCRAM-SHA-256, 2 is SCRAM-SHA-512.
Source: protocol guide; KIP-43, 152, 368 (session lifetime), 554.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BYTES,
    ERROR_CODE,
    INT8,
    INT32,
    INT64,
    STRING,
    Array,
    WireStruct,
    wire,
)


class SaslHandshakeRequest(WireStruct):
    mechanism: str = wire(STRING)


class SaslHandshakeResponse(WireStruct):
    """``mechanisms`` are the listener's, also after an unsupported one was requested."""

    error_code: ErrorCode = wire(ERROR_CODE)
    mechanisms: tuple[str, ...] = wire(Array(STRING))


class SaslAuthenticateRequest(WireStruct):
    """``auth_bytes`` may hold a password, so ``repr`` omits it."""

    auth_bytes: bytes = wire(BYTES)

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(WireStruct):
    """``session_lifetime_ms``: the client must log in again within this time; 0 is forever."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    auth_bytes: bytes = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, 1, ignorable=True)


class UserName(WireStruct):
    name: str = wire(STRING)


class DescribeUserScramCredentialsRequest(WireStruct):
    users: tuple[UserName, ...] | None = wire(Array(UserName), null_since=0)


class CredentialInfo(WireStruct):
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


class DescribeUserScramCredentialsResult(WireStruct):
    user: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    credential_infos: tuple[CredentialInfo, ...] = wire(Array(CredentialInfo))


class DescribeUserScramCredentialsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    results: tuple[DescribeUserScramCredentialsResult, ...] = wire(Array(DescribeUserScramCredentialsResult))


class ScramCredentialDeletion(WireStruct):
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


class ScramCredentialUpsertion(WireStruct):
    """``salted_password`` is PBKDF2 with ``salt`` and ``iterations``, and as sensitive: ``repr`` omits it."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion({self.name!r}, {self.mechanism}, {self.iterations})"


class AlterUserScramCredentialsRequest(WireStruct):
    deletions: tuple[ScramCredentialDeletion, ...] = wire(Array(ScramCredentialDeletion))
    upsertions: tuple[ScramCredentialUpsertion, ...] = wire(Array(ScramCredentialUpsertion))


class AlterUserScramCredentialsResult(WireStruct):
    user: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


class AlterUserScramCredentialsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    results: tuple[AlterUserScramCredentialsResult, ...] = wire(Array(AlterUserScramCredentialsResult))
