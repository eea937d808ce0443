"""DescribeUserScramCredentials, version 0: who has SCRAM credentials, and with how many iterations.

Flexible from 0. No users, or null, mean all. Source: protocol guide, DescribeUserScramCredentials; KIP-554.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class UserName:
    name: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsRequest:
    users: tuple[UserName, ...] | None = wire(Array(UserName), null_since=0)


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

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
