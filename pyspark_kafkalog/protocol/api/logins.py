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

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BYTES, ERROR_CODE, INT8, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    mechanism: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse:
    """``mechanisms`` are the listener's, also after an unsupported one was requested."""

    error_code: ErrorCode = wire(ERROR_CODE)
    mechanisms: tuple[str, ...] = wire(Array(STRING))


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest:
    """``auth_bytes`` may hold a password, so ``repr`` omits it."""

    auth_bytes: bytes = wire(BYTES)

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse:
    """``session_lifetime_ms``: the client must log in again within this time; 0 is forever."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    auth_bytes: bytes = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, 1, ignorable=True)


@dataclass(frozen=True, slots=True)
class UserName:
    name: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsRequest:
    users: tuple[UserName, ...] | None = wire(Array(UserName), null_since=0)


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    credential_infos: tuple[CredentialInfo, ...] = wire(Array(CredentialInfo))


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    results: tuple[DescribeUserScramCredentialsResult, ...] = wire(Array(DescribeUserScramCredentialsResult))


@dataclass(frozen=True, slots=True)
class ScramCredentialDeletion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class ScramCredentialUpsertion:
    """``salted_password`` is PBKDF2 with ``salt`` and ``iterations``, and as sensitive: ``repr`` omits it."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion({self.name!r}, {self.mechanism}, {self.iterations})"


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsRequest:
    deletions: tuple[ScramCredentialDeletion, ...] = wire(Array(ScramCredentialDeletion))
    upsertions: tuple[ScramCredentialUpsertion, ...] = wire(Array(ScramCredentialUpsertion))


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsResponse:
    """One result per user in the request."""

    throttle_time_ms: int = wire(INT32)
    results: tuple[AlterUserScramCredentialsResult, ...] = wire(Array(AlterUserScramCredentialsResult))
