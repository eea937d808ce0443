"""Describe and change properties of topics and of this broker.

API                      Versions  Left out
-----------------------  --------  ---------------------------------------------------------------------------
DescribeConfigs          1-4       other resources (loggers, client metrics, groups)
AlterConfigs             0-2       the broker's properties that are read when it starts; loggers, client
                                   metrics, groups
IncrementalAlterConfigs  0-1       the broker's properties that are read when it starts; loggers, client
                                   metrics, groups
ListConfigResources      0-1       loggers, client metrics, groups: there are none
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from kafkalog_broker.log.generations import check_name
from kafkalog_broker.server.broker_settings import ConfigEntry, broker_entries, topic_entries
from kafkalog_broker.server.dispatch import Context, always, handles
from kafkalog_broker.server.handlers.metadata import live_brokers
from kafkalog_broker.server.topics import ConfigChange
from pyspark_kafkalog.config.definition import Config, describe
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, InvalidRequest, KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.api import configs as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType


@handles(
    ApiKey.DESCRIBE_CONFIGS, (1, 4), (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER), takes_long=always,
)  # fmt: skip
def describe_configs(request: api.DescribeConfigsRequest, ctx: Context) -> api.DescribeConfigsResponse:
    """Describe the properties of topics and of this broker, with sources and synonyms."""
    resources = dict.fromkeys(request.resources)
    return api.DescribeConfigsResponse(
        results=tuple(_describe_resource(each, request, ctx) for each in resources)
    )


def _describe_resource(
    resource: api.DescribeConfigsResource, request: api.DescribeConfigsRequest, ctx: Context
) -> api.DescribeConfigsResult:
    keys = resource.configuration_keys
    result = partial(
        api.DescribeConfigsResult, resource_type=resource.resource_type, resource_name=resource.resource_name
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


def _entries_of(resource: api.DescribeConfigsResource, ctx: Context) -> Iterator[ConfigEntry]:
    services, name = ctx.services, resource.resource_name
    if resource.resource_type == api.ResourceType.TOPIC:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
        # A name may be legal only in another generation.
        if name not in services.topics.all():
            check_name(name)
        topic = services.topics.get(name)
        return topic_entries(services.settings, topic.overrides, topic.generation)
    if resource.resource_type == api.ResourceType.BROKER:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        services.settings.check_name(name)
        return broker_entries(services.settings, name)
    raise InvalidRequest(f"resource type {resource.resource_type}; known are topics (2) and brokers (4)")


def _described_entry(
    entry: ConfigEntry, request: api.DescribeConfigsRequest
) -> api.DescribeConfigsResourceResult:
    return api.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        synonyms=entry.synonyms if request.include_synonyms else (),
        config_type=entry.config_type,
        documentation=entry.doc if request.include_documentation else None,
    )


def altered(
    changes: Sequence[tuple[int, str, ConfigChange]], ctx: Context, *, validate_only: bool
) -> tuple[api.AlterConfigsResourceResponse, ...]:
    """Change each resource, given by type and name; returns the results in their order."""
    times = Counter((kind, name) for kind, name, _ in changes)
    results = []
    for kind, name, change in changes:
        code, why = ErrorCode.NONE, None
        try:
            if times[kind, name] > 1:
                raise InvalidRequest(f"resource {name!r} is in the request {times[kind, name]} times")
            _alter(kind, name, change, ctx, validate_only=validate_only)
        except KafkaError as e:
            code, why = ctx.refused(e), str(e)
        results.append(api.AlterConfigsResourceResponse(code, why, kind, name))
    return tuple(results)


def _alter(kind: int, name: str, change: ConfigChange, ctx: Context, *, validate_only: bool) -> None:
    if kind == api.ResourceType.BROKER:
        ctx.demand(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        settings = ctx.services.settings
        settings.check_name(name)
        settings.alter(name, change(settings.own(name)), validate_only=validate_only)
        return
    if kind != api.ResourceType.TOPIC:
        raise InvalidRequest(f"resource type {kind}; those of topics (2) and brokers (4) can be changed")
    ctx.demand(Operation.ALTER_CONFIGS, ResourceType.TOPIC, name)
    ctx.services.topics.alter(name, change, validate_only=validate_only)


@handles(
    ApiKey.ALTER_CONFIGS, (0, 2), (Operation.ALTER_CONFIGS, ResourceType.TOPIC),
    (Operation.ALTER_CONFIGS, ResourceType.CLUSTER), takes_long=always,
)  # fmt: skip
def alter_configs(request: api.AlterConfigsRequest, ctx: Context) -> api.AlterConfigsResponse:
    """Replace all the properties that topics, or the broker while it runs, set for themselves."""
    changes = [
        (each.resource_type, each.resource_name, partial(replaced, each.configs))
        for each in request.resources
    ]
    return api.AlterConfigsResponse(responses=altered(changes, ctx, validate_only=request.validate_only))


def replaced(configs: Sequence[api.AlterableConfig], _: Mapping[str, str]) -> dict[str, str]:
    """A resource's new properties, replacing all. Raises `InvalidRequest`: one is null, or given twice."""
    _check_once(config.name for config in configs)
    return {config.name: _given(config.name, config.value) for config in configs}


@handles(
    ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), (Operation.ALTER_CONFIGS, ResourceType.TOPIC),
    (Operation.ALTER_CONFIGS, ResourceType.CLUSTER), takes_long=always,
)  # fmt: skip
def incremental_alter_configs(
    request: api.IncrementalAlterConfigsRequest, ctx: Context
) -> api.IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from properties of topics and the broker."""
    config = ctx.services.settings.config
    topic_defaults, changes = config.log_defaults(), []
    for each in request.resources:
        defaults = config if each.resource_type == api.ResourceType.BROKER else topic_defaults
        changes.append((each.resource_type, each.resource_name, partial(changed, each.configs, defaults)))
    return api.IncrementalAlterConfigsResponse(
        responses=altered(changes, ctx, validate_only=request.validate_only)
    )


def changed(
    configs: Sequence[api.IncrementalAlterableConfig], defaults: Config, overrides: Mapping[str, str]
) -> dict[str, str]:
    _check_once(config.name for config in configs)
    after = dict(overrides)
    for config in configs:
        name = config.name
        if config.config_operation == api.ConfigOperation.DELETE:
            after.pop(name, None)
        elif config.config_operation == api.ConfigOperation.SET:
            after[name] = _given(name, config.value)
        elif config.config_operation in (api.ConfigOperation.APPEND, api.ConfigOperation.SUBTRACT):
            words = _listed(name, defaults, overrides)
            given = [word.strip() for word in _given(name, config.value).split(",")]
            if config.config_operation == api.ConfigOperation.APPEND:
                words += [word for word in given if word not in words]
            else:
                for word in given:
                    if word in words:
                        words.remove(word)  # as in Kafka, one of several equal words
            after[name] = ",".join(words)
        else:
            raise InvalidRequest(
                f"operation {config.config_operation} on {name}; there are"
                " set (0), delete (1), append (2) and subtract (3)"
            )
    return after


def _check_once(names: Iterator[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InvalidRequest(f"property {name} is given {times} times for one resource")


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"property {name} has no value")
    return value


def _listed(name: str, defaults: Config, overrides: Mapping[str, str]) -> list[str]:
    for item in describe(type(defaults)):
        if item.name == name and item.kind is tuple:
            value = item.read(overrides[name], name) if name in overrides else getattr(defaults, item.field)
            return list(value)
    raise InvalidConfig(f"nothing can be appended to {name}, or subtracted from it: it is not a list")


@handles(
    ApiKey.LIST_CONFIG_RESOURCES, (0, 1), (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    takes_long=always,
)  # fmt: skip
def list_config_resources(
    request: api.ListConfigResourcesRequest, ctx: Context
) -> api.ListConfigResourcesResponse:
    """List topics and brokers, whose properties can be described. Version 0 asks for client metrics only."""
    kinds = request.resource_types or tuple(api.ResourceType)
    if ctx.version < _RESOURCE_TYPES_SINCE:
        kinds = (api.ResourceType.CLIENT_METRICS,)
    names: dict[int, Iterable[object]] = dict.fromkeys(api.ResourceType, ())
    names[api.ResourceType.TOPIC] = sorted(ctx.services.topics.all())
    names[api.ResourceType.BROKER] = live_brokers(ctx)
    try:
        ctx.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        unknown = [kind for kind in kinds if kind not in names]
        if unknown:
            raise UnsupportedVersion(f"resource type {unknown[0]}; known are {', '.join(map(str, names))}")
    except KafkaError as e:
        return api.ListConfigResourcesResponse(error_code=ctx.refused(e))
    return api.ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            api.ConfigResource(resource_name=str(name), resource_type=kind)
            for kind in dict.fromkeys(kinds)
            for name in names[kind]
        ),
    )


_RESOURCE_TYPES_SINCE = 1
