from __future__ import annotations

from pathlib import Path

import pytest

from broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api import incremental_alter_configs as incremental
from pyspark_kafkalog.protocol.api.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from pyspark_kafkalog.protocol.api.describe_configs import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ResourceType,
)
from pyspark_kafkalog.protocol.api.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions

SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def own(client: RawClient, topic: str) -> dict[str, str | None]:
    """What the topic sets for itself."""
    request = DescribeConfigsRequest((DescribeConfigsResource(ResourceType.TOPIC, topic),))
    (result,) = client.ask(request, 4).results
    return {
        entry.name: entry.value
        for entry in result.configs
        if entry.config_source == ConfigSource.TOPIC_CONFIG
    }


def change(
    client: RawClient,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = ResourceType.TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> incremental.AlterConfigsResourceResponse:
    configs = tuple(incremental.AlterableConfig(*each) for each in changes)
    request = IncrementalAlterConfigsRequest(
        (incremental.AlterConfigsResource(kind, name, configs),), validate_only
    )
    (result,) = client.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_single_properties_are_set_and_deleted(client: RawClient, topic_name: str, version: int) -> None:
    client.create_topic(topic_name, configs={"retention.ms": "60000", "segment.ms": "5000"})
    result = change(
        client, topic_name, ("retention.ms", SET, "7"), ("segment.ms", DELETE, None), version=version
    )
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert own(client, topic_name) == {"retention.ms": "7"}


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_all_properties_are_replaced(client: RawClient, topic_name: str, version: int) -> None:
    client.create_topic(topic_name, configs={"retention.ms": "60000"})
    resource = AlterConfigsResource(
        ResourceType.TOPIC, topic_name, (AlterableConfig("segment.bytes", "1048576"),)
    )
    (result,) = client.ask(AlterConfigsRequest((resource,)), version).responses
    assert (result.error_code, result.resource_name) == (ErrorCode.NONE, topic_name)
    assert own(client, topic_name) == {"segment.bytes": "1048576"}


def test_words_are_appended_to_a_list_and_subtracted_from_it(client: RawClient, topic: str) -> None:
    assert change(client, topic, ("cleanup.policy", APPEND, "compact")).error_code == ErrorCode.NONE
    assert own(client, topic) == {"cleanup.policy": "delete,compact"}
    assert change(client, topic, ("cleanup.policy", SUBTRACT, "delete")).error_code == ErrorCode.NONE
    assert own(client, topic) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not a list"),
        ([("generation", SET, "0.7")], ErrorCode.INVALID_CONFIG, "fixed"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "no value"),
        ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST, "operation 4"),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST, "2 times"),
    ],
    ids=["unknown", "value", "no list", "generation", "null", "operation", "twice"],
)
def test_of_a_resource_with_a_wrong_change_nothing_changes(
    client: RawClient,
    topic_name: str,
    changes: list[tuple[str, int, str | None]],
    code: ErrorCode,
    words: str,
) -> None:
    client.create_topic(topic_name, configs={"segment.ms": "5000"})
    result = change(client, topic_name, ("segment.ms", SET, "6000"), *changes)
    assert result.error_code == code
    assert words in (result.error_message or "")
    assert own(client, topic_name) == {"segment.ms": "5000"}


def test_what_is_no_topic_is_refused_with_the_reason(client: RawClient, topic: str) -> None:
    missing = change(client, "no-such-topic", ("retention.ms", SET, "1"))
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ours = change(client, "0", ("log.retention.ms", SET, "1"), kind=ResourceType.BROKER)
    assert (ours.error_code, "file" in (ours.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    logger = change(client, "0", ("a", SET, "DEBUG"), kind=8)
    assert (logger.error_code, "type 8" in (logger.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    twice = incremental.AlterConfigsResource(
        ResourceType.TOPIC, topic, (incremental.AlterableConfig("retention.ms", SET, "1"),)
    )
    answer = client.ask(IncrementalAlterConfigsRequest((twice, twice)), 1)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert own(client, topic) == {}


def test_a_change_that_is_only_validated_is_not_made(client: RawClient, topic: str) -> None:
    good = change(client, topic, ("retention.ms", SET, "1"), validate_only=True)
    bad = change(client, topic, ("retention.ms", SET, "x"), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_CONFIG)
    assert own(client, topic) == {}


def test_a_change_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        assert client.produce("t", batch(b"x" * 200)).error_code == ErrorCode.NONE
        assert change(client, "t", ("max.message.bytes", SET, "100")).error_code == ErrorCode.NONE
        assert client.produce("t", batch(b"x" * 200)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        assert own(client, "t") == {"max.message.bytes": "100"}
        assert client.produce("t", batch(b"x" * 200)).error_code == ErrorCode.MESSAGE_TOO_LARGE
