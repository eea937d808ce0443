"""AlterUserScramCredentials, version 0: SCRAM credentials are set and removed.

Flexible from 0. Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512. Source: protocol guide,
AlterUserScramCredentials; KIP-554.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BYTES, ERROR_CODE, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ScramCredentialDeletion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class ScramCredentialUpsertion:
    """``salted_password`` is PBKDF2 of the password with the ``salt`` and the ``iterations``. It is as good
    as the password, and has no place in a ``repr``.
    """

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
    """One result for each user that the request names."""

    throttle_time_ms: int = wire(INT32)
    results: tuple[AlterUserScramCredentialsResult, ...] = wire(Array(AlterUserScramCredentialsResult))
