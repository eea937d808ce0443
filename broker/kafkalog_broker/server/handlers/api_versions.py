"""ApiVersions 0-4: the table of what this broker serves.

A version we do not know is answered by `unsupported`, in version 0's body, as every client expects.
The one feature is ``transaction.version`` 2: Produce 12, TxnOffsetCommit 5 and EndTxn 5 together (KIP-890).
"""

from __future__ import annotations

import re

from kafkalog_broker.server.dispatch import REGISTRY, Context, handles
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from pyspark_kafkalog.protocol.exchange import ApiKey

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_TRANSACTIONS = "transaction.version"


def unsupported() -> ApiVersionsResponse:
    """The answer, to be encoded as version 0, for a version of ApiVersions that we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_table())


@handles(ApiKey.API_VERSIONS, versions=(0, 4), needs=(), unknown_version=unsupported)
def api_versions(request: ApiVersionsRequest, ctx: Context) -> ApiVersionsResponse:
    """The table; from version 3 the client must name itself in legal characters (KIP-511)."""
    named = _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    if ctx.version >= 3 and not named:
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_table(),
        supported_features=(SupportedFeatureKey(_TRANSACTIONS, 1, 2),),
        finalized_features_epoch=0,
        finalized_features=(FinalizedFeatureKey(_TRANSACTIONS, 2, 2),),
    )


def _table() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=int(entry.key), min_version=entry.versions[0], max_version=entry.versions[1])
        for entry in sorted(REGISTRY.values(), key=lambda entry: entry.key)
    )
