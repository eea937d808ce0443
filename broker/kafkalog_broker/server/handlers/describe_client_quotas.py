"""DescribeClientQuotas 0-1: this broker has no quotas, so nothing matches.

The filter is checked as Kafka checks it. Left out: setting any (AlterClientQuotas).
"""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.api.cluster import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_ENTITY_TYPES = ("user", "client-id", "ip")


@handles(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    needs=((Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)
def describe_client_quotas(
    request: DescribeClientQuotasRequest, ctx: Context
) -> DescribeClientQuotasResponse:
    """An empty list."""
    try:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        _check(request.components)
    except KafkaError as e:
        return DescribeClientQuotasResponse(error_code=ctx.refused(e), error_message=str(e))
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message="", entries=())


def _check(components: tuple[ComponentData, ...]) -> None:
    """Raises `InvalidRequest`, and `UnsupportedVersion` for what has no quotas in Kafka."""
    seen: set[str] = set()
    for each in components:
        kind = each.entity_type
        if not kind:
            raise InvalidRequest("an entity type is empty")
        if kind not in _ENTITY_TYPES:
            raise UnsupportedVersion(f"entity type {kind!r}; there are {', '.join(_ENTITY_TYPES)}")
        if kind in seen:
            raise InvalidRequest(f"entity type {kind!r} is in the filter more than once")
        seen.add(kind)
        if each.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise InvalidRequest(
                f"match type {each.match_type}; there are exact (0), default (1) and any specified (2)"
            )
        if (each.match is None) == (each.match_type == _EXACT):
            raise InvalidRequest(f"{kind}: a name is given with match type exact (0), and only with that")
    if "ip" in seen and len(seen) > 1:
        raise InvalidRequest("quotas of addresses cannot be combined with those of users or client ids")
