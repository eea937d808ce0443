"""AlterConfigs 0-2: replace all the properties that topics, or the broker while it runs, set for themselves.

Left out: the broker's properties that are read when it starts; loggers, client metrics, groups.
"""

from __future__ import annotations

from functools import partial

from kafkalog_broker.server.configs import altered, replaced
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.protocol.api.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    needs=((Operation.ALTER_CONFIGS, ResourceType.TOPIC), (Operation.ALTER_CONFIGS, ResourceType.CLUSTER)),
)
def alter_configs(request: AlterConfigsRequest, ctx: Context) -> Steps[AlterConfigsResponse]:
    """A result for each resource: all of its changes are made, or none. One given twice is refused."""
    changes = [
        (each.resource_type, each.resource_name, partial(replaced, each.configs))
        for each in request.resources
    ]
    results = yield from altered(changes, ctx, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=tuple(AlterConfigsResourceResponse(*result) for result in results))
