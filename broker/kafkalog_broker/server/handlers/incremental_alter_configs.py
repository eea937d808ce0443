"""IncrementalAlterConfigs 0-1: set, delete, append to and subtract from properties of topics and the broker.

Left out: the broker's properties that are read when it starts; loggers, client metrics, groups.
"""

from __future__ import annotations

from functools import partial

from kafkalog_broker.server.configs import altered, changed
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.protocol.api.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.protocol.api.configs import ResourceType as ConfigResource
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    needs=((Operation.ALTER_CONFIGS, ResourceType.TOPIC), (Operation.ALTER_CONFIGS, ResourceType.CLUSTER)),
)
def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, ctx: Context
) -> Steps[IncrementalAlterConfigsResponse]:
    """A result for each resource: all of its changes are made, or none. One given twice is refused."""
    config = ctx.services.settings.config
    topic_defaults = config.log_defaults()
    changes = [
        (
            each.resource_type,
            each.resource_name,
            partial(
                changed,
                each.configs,
                config if each.resource_type == ConfigResource.BROKER else topic_defaults,
            ),
        )
        for each in request.resources
    ]
    results = yield from altered(changes, ctx, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(AlterConfigsResourceResponse(*result) for result in results)
    )
