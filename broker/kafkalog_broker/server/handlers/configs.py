"""Describe and change properties of topics and of this broker.

API                      Versions  Left out
-----------------------  --------  ---------------------------------------------------------------------------
DescribeConfigs          1-4       other resources (loggers, client metrics, groups)
AlterConfigs             0-2       the broker's properties that are read when it starts; loggers, client
                                   metrics, groups
IncrementalAlterConfigs  0-1       the broker's properties that are read when it starts; loggers, client
                                   metrics, groups

`server.configs` has the properties as entries, and the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kafkalog_broker.log.generations import check_name
from kafkalog_broker.server.configs import (
    ConfigEntry,
    altered,
    broker_entries,
    changed,
    replaced,
    topic_entries,
)
from kafkalog_broker.server.dispatch import Context, always, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.protocol.api.configs import ResourceType as ConfigResource
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType

# --- DescribeConfigs


@handles(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    needs=(
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
    takes_long=always,
)
def describe_configs(request: DescribeConfigsRequest, ctx: Context) -> DescribeConfigsResponse:
    """Describe the properties of topics and of this broker, with sources and synonyms.

    A resource that is in the request twice has one result. Null keys ask for every property.
    """
    results = []
    for resource in dict.fromkeys(request.resources):
        results.append(_describe_resource(resource, request, ctx))
    return DescribeConfigsResponse(results=tuple(results))


def _describe_resource(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, ctx: Context
) -> DescribeConfigsResult:
    keys = resource.configuration_keys
    result = partial(
        DescribeConfigsResult, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        entries = tuple(
            _described_entry(entry, request)
            for entry in _entries_of(resource, ctx)
            if keys is None or entry.name in keys
        )
    except KafkaError as e:
        return result(error_code=ctx.refused(e), error_message=str(e))
    return result(error_code=ErrorCode.NONE, error_message="", configs=entries)


def _entries_of(resource: DescribeConfigsResource, ctx: Context) -> Iterator[ConfigEntry]:
    services, name = ctx.services, resource.resource_name
    if resource.resource_type == ConfigResource.TOPIC:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
        # A name may be legal only in another generation.
        if name not in services.topics.all():
            check_name(name)
        topic = services.topics.get(name)
        return topic_entries(services.settings, topic.overrides, topic.generation)
    if resource.resource_type == ConfigResource.BROKER:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        services.settings.check_name(name)
        return broker_entries(services.settings, name)
    raise InvalidRequest(f"resource type {resource.resource_type}; known are topics (2) and brokers (4)")


def _described_entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
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


# --- AlterConfigs


@handles(
    ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    needs=((Operation.ALTER_CONFIGS, ResourceType.TOPIC), (Operation.ALTER_CONFIGS, ResourceType.CLUSTER)),
    takes_long=always,
)
def alter_configs(request: AlterConfigsRequest, ctx: Context) -> AlterConfigsResponse:
    """Replace all the properties that topics, or the broker while it runs, set for themselves.

    All changes of a resource are made, or none. One that is in the request twice is refused.
    """
    changes = [
        (each.resource_type, each.resource_name, partial(replaced, each.configs))
        for each in request.resources
    ]
    results = altered(changes, ctx, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=tuple(AlterConfigsResourceResponse(*result) for result in results))


# --- IncrementalAlterConfigs


@handles(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    needs=((Operation.ALTER_CONFIGS, ResourceType.TOPIC), (Operation.ALTER_CONFIGS, ResourceType.CLUSTER)),
    takes_long=always,
)
def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, ctx: Context
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from properties of topics and the broker.

    All changes of a resource are made, or none. One that is in the request twice is refused.
    """
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
    results = altered(changes, ctx, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(AlterConfigsResourceResponse(*result) for result in results)
    )
