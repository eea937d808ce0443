"""ApiVersions, versions 0-4: the APIs that a broker serves, with their versions.

Flexible from 3; the response's header never is. A broker that does not know the requested version responds
with version 0 and error 35. Left out: nothing; we have no features to announce. Source: KIP-35, KIP-511,
KIP-584.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT16, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    client_software_name: str = wire(STRING, 3, ignorable=True)
    client_software_version: str = wire(STRING, 3, ignorable=True)


@dataclass(frozen=True, slots=True)
class ApiVersion:
    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@dataclass(frozen=True, slots=True)
class SupportedFeatureKey:
    """The versions of a feature that the broker could use."""

    name: str = wire(STRING, 3)
    min_version: int = wire(INT16, 3)
    max_version: int = wire(INT16, 3)


@dataclass(frozen=True, slots=True)
class FinalizedFeatureKey:
    """The versions of a feature that the whole cluster uses."""

    name: str = wire(STRING, 3)
    max_version_level: int = wire(INT16, 3)
    min_version_level: int = wire(INT16, 3)


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """The served APIs; ``finalized_features_epoch`` -1 is unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    api_keys: tuple[ApiVersion, ...] = wire(Array(ApiVersion))
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = wire(
        Array(SupportedFeatureKey), 3, tag=0, ignorable=True
    )
    finalized_features_epoch: int = wire(INT64, 3, tag=1, default=-1, ignorable=True)
    finalized_features: tuple[FinalizedFeatureKey, ...] = wire(
        Array(FinalizedFeatureKey), 3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = wire(BOOL, 3, tag=3, ignorable=True)
