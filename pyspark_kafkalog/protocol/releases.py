"""What releases of Kafka speak whose brokers do not tell, or need not be asked: the table of the old ones.

Brokers tell their versions since 0.10.0 (ApiVersions, KIP-35). Of an older one a client must be told which
release it is. Only APIs that we have are listed.
Source: the releases' own `kafka/api/RequestKeys.scala` with its requests, `common/protocol/Protocol.java`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark_kafkalog.protocol.exchange import ApiKey, VersionRange

Versions = Mapping[ApiKey, VersionRange]

_V0, _V0_1, _V0_2, _V0_3 = (VersionRange(0, last) for last in range(4))

_0_8_0: Versions = {
    ApiKey.PRODUCE: _V0, ApiKey.FETCH: _V0, ApiKey.LIST_OFFSETS: _V0, ApiKey.METADATA: _V0,
}  # fmt: skip
_0_8_1: Versions = {**_0_8_0, ApiKey.OFFSET_COMMIT: _V0, ApiKey.OFFSET_FETCH: _V0}
_0_8_2: Versions = {
    **_0_8_1, ApiKey.OFFSET_COMMIT: _V0_1, ApiKey.OFFSET_FETCH: _V0_1, ApiKey.FIND_COORDINATOR: _V0,
}  # fmt: skip
_0_9_0: Versions = {
    **_0_8_2, ApiKey.PRODUCE: _V0_1, ApiKey.FETCH: _V0_1, ApiKey.OFFSET_COMMIT: _V0_2,
    ApiKey.DESCRIBE_GROUPS: _V0, ApiKey.LIST_GROUPS: _V0,
}  # fmt: skip
_0_10_0: Versions = {
    **_0_9_0, ApiKey.PRODUCE: _V0_2, ApiKey.FETCH: _V0_2, ApiKey.METADATA: _V0_1, ApiKey.API_VERSIONS: _V0,
}  # fmt: skip
_0_10_1: Versions = {
    **_0_10_0, ApiKey.FETCH: _V0_3, ApiKey.LIST_OFFSETS: _V0_1, ApiKey.METADATA: _V0_2,
    ApiKey.CREATE_TOPICS: _V0, ApiKey.DELETE_TOPICS: _V0,
}  # fmt: skip
_0_10_2: Versions = {**_0_10_1, ApiKey.OFFSET_FETCH: _V0_2, ApiKey.CREATE_TOPICS: _V0_1}

RELEASES: Mapping[str, Versions] = {
    "0.8.0": _0_8_0,
    "0.8.1": _0_8_1,
    "0.8.2": _0_8_2,
    "0.9.0": _0_9_0,
    "0.10.0": _0_10_0,
    "0.10.1": _0_10_1,
    "0.10.2": _0_10_2,
}
"""By release, the oldest first. From 0.11 on there is nothing to be told: brokers say it all."""

_PATCH = re.compile(r"(0\.(?:8|9|10)\.[0-9])(?:\.[0-9]{1,2})?")


def release_of(text: str) -> str | None:
    """The release in `RELEASES` that a version's number names, its patches included: 0.8.2.2 is 0.8.2."""
    found = _PATCH.fullmatch(text)
    return found[1] if found is not None and found[1] in RELEASES else None


def message_magic(release: str) -> int:
    """The newest message format that brokers of a release take: 0 or 1."""
    return 0 if RELEASES[release][ApiKey.PRODUCE].max < _TIMESTAMPS_SINCE else 1


_TIMESTAMPS_SINCE = 2
"""The version of Produce that brought messages v1."""
