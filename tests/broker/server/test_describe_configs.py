from __future__ import annotations

import pytest

from broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.describe_configs import (
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    ResourceType,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, versions


def describe(
    client: RawClient,
    kind: int,
    name: str,
    *keys: str,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(kind, name, keys or None)
    request = DescribeConfigsRequest((resource,), synonyms, documentation)
    (result,) = client.ask(request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_a_topics_own_value_and_the_defaults_in_every_version(
    client: RawClient, topic_name: str, version: int
) -> None:
    client.create_topic(topic_name, configs={"retention.ms": "60000"})
    result = describe(client, ResourceType.TOPIC, topic_name, version=version)
    assert result.error_code == ErrorCode.NONE
    configs = {c.name: c for c in result.configs}
    own, inherited = configs["retention.ms"], configs["cleanup.policy"]
    assert (own.value, own.config_source, own.read_only) == ("60000", ConfigSource.TOPIC_CONFIG, False)
    assert (inherited.value, inherited.config_source) == ("delete", ConfigSource.DEFAULT_CONFIG)
    if version >= 3:
        assert own.config_type == ConfigType.LONG or own.config_type == ConfigType.INT
        assert inherited.config_type == ConfigType.LIST


def test_only_the_keys_asked_for_are_answered(client: RawClient, topic: str) -> None:
    result = describe(client, ResourceType.TOPIC, topic, "segment.bytes", "no.such.key")
    assert [c.name for c in result.configs] == ["segment.bytes"]


def test_synonyms_say_where_a_value_comes_from_best_first() -> None:
    with start_broker({"log.retention.hours": 2}) as broker, RawClient(broker.port) as client:
        client.create_topic("t", configs={"retention.ms": "60000"})
        result = describe(client, ResourceType.TOPIC, "t", "retention.ms", synonyms=True)
        assert [(s.name, s.value, s.source) for s in result.configs[0].synonyms] == [
            ("retention.ms", "60000", ConfigSource.TOPIC_CONFIG),
            ("log.retention.ms", "7200000", ConfigSource.STATIC_BROKER_CONFIG),
            ("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
        ]
        plain = describe(client, ResourceType.TOPIC, "t", "retention.ms")
        assert plain.configs[0].synonyms == ()


def test_documentation_is_given_when_asked_for(client: RawClient, topic: str) -> None:
    told = describe(client, ResourceType.TOPIC, topic, "segment.bytes", documentation=True).configs[0]
    assert told.documentation == "Size at which a new segment file is begun."
    assert describe(client, ResourceType.TOPIC, topic, "segment.bytes").configs[0].documentation is None


def test_the_brokers_properties_say_whether_they_can_be_changed(client: RawClient) -> None:
    result = describe(client, ResourceType.BROKER, "0")
    configs = {c.name: c for c in result.configs}
    changeable = {name for name, config in configs.items() if not config.read_only}
    assert changeable >= {
        "log.retention.ms",
        "log.segment.bytes",
        "log.flush.interval.ms",
        "message.max.bytes",
    }
    assert changeable.isdisjoint(
        {"node.id", "log.dirs", "listeners", "num.partitions", "log.retention.hours"}
    )
    changed, default = configs["offset.metadata.max.bytes"], configs["num.partitions"]
    assert (changed.value, changed.config_source) == ("20", ConfigSource.STATIC_BROKER_CONFIG)
    assert (default.value, default.config_source) == ("1", ConfigSource.DEFAULT_CONFIG)
    assert (default.config_type, configs["auto.create.topics.enable"].config_type) == (
        ConfigType.INT,
        ConfigType.BOOLEAN,
    )


def test_nothing_was_changed_for_all_brokers(client: RawClient) -> None:
    result = describe(client, ResourceType.BROKER, "")
    assert (result.error_code, result.configs) == (ErrorCode.NONE, ())


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ResourceType.TOPIC, "never-made", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.BROKER, "1", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "x", ErrorCode.INVALID_REQUEST),
        (8, "0", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_there_is_refused_and_the_others_are_reported(
    client: RawClient, topic: str, kind: int, name: str, code: ErrorCode
) -> None:
    good = DescribeConfigsResource(ResourceType.TOPIC, topic)
    bad, fine = client.ask(DescribeConfigsRequest((DescribeConfigsResource(kind, name), good))).results
    assert (bad.error_code, bad.configs) == (code, ())
    assert bad.error_message
    assert fine.error_code == ErrorCode.NONE
    assert len(fine.configs) > 10
