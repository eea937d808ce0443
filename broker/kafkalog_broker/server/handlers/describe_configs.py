"""DescribeConfigs 1-4: the properties of topics and of this broker, with sources and synonyms.

Left out: other resources (loggers, client metrics, groups).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kafkalog_broker.log.generations import check_name
from kafkalog_broker.server.configs import ConfigEntry, broker_entries, topic_entries
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pyspark_kafkalog.protocol.api.configs import ResourceType as ConfigResource
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    needs=(
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
)
def describe_configs(request: DescribeConfigsRequest, ctx: Context) -> Steps[DescribeConfigsResponse]:
    """A result for each resource, and no second one for the same; null keys ask for every property."""
    results = []
    for resource in dict.fromkeys(request.resources):
        results.append(_describe(resource, request, ctx))
        yield None
    return DescribeConfigsResponse(results=tuple(results))


def _describe(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, ctx: Context
) -> DescribeConfigsResult:
    keys = resource.configuration_keys
    result = partial(
        DescribeConfigsResult, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        entries = tuple(
            _entry(entry, request) for entry in _entries(resource, ctx) if keys is None or entry.name in keys
        )
    except KafkaError as e:
        return result(error_code=ctx.refused(e), error_message=str(e))
    return result(error_code=ErrorCode.NONE, error_message="", configs=entries)


def _entries(resource: DescribeConfigsResource, ctx: Context) -> Iterator[ConfigEntry]:
    services, name = ctx.services, resource.resource_name
    if resource.resource_type == ConfigResource.TOPIC:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
        # A topic of another generation may have a name that is none here.
        if name not in services.topics.all():
            check_name(name)
        topic = services.topics.get(name)
        return topic_entries(services.settings, topic.overrides, topic.generation)
    if resource.resource_type == ConfigResource.BROKER:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        services.settings.check_name(name)
        return broker_entries(services.settings, name)
    raise InvalidRequest(f"resource type {resource.resource_type}; known are topics (2) and brokers (4)")


def _entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=False,
        synonyms=entry.synonyms if request.include_synonyms else (),
        config_type=entry.config_type,
        documentation=entry.doc if request.include_documentation else None,
    )
