"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: of topics and of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    ConfigOperation,
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ResourceType,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions
from tests.support.until import until

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
) -> AlterConfigsResourceResponse:
    configs = tuple(IncrementalAlterableConfig(*each) for each in changes)
    request = IncrementalAlterConfigsRequest(
        (IncrementalAlterConfigsResource(kind, name, configs),), validate_only
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


def test_a_policy_may_be_empty_and_one_word_of_two_is_subtracted(client: RawClient, topic_name: str) -> None:
    client.create_topic(topic_name, configs={"cleanup.policy": ""})
    assert own(client, topic_name) == {"cleanup.policy": ""}
    for operation, word, left in (
        (APPEND, "compact", "compact"), (SUBTRACT, "compact", ""), (SUBTRACT, "compact", ""),
        (SET, "compact,compact", "compact,compact"), (SUBTRACT, "compact", "compact"), (SET, "", ""),
    ):  # fmt: skip
        assert change(client, topic_name, ("cleanup.policy", operation, word)).error_code == ErrorCode.NONE
        assert own(client, topic_name) == {"cleanup.policy": left}


@pytest.mark.parametrize("generation", ["0.7", "0.8"])
def test_what_was_described_can_be_set_again(client: RawClient, topic_name: str, generation: str) -> None:
    client.create_topic(topic_name, configs={"generation": generation, "cleanup.policy": ""})

    def described() -> dict[str, str | None]:
        return {c.name: c.value for c in describe(client, ResourceType.TOPIC, topic_name).configs}

    before = described()
    assert before["generation"] == generation
    again = tuple(AlterableConfig(*each) for each in before.items())
    request = AlterConfigsRequest((AlterConfigsResource(ResourceType.TOPIC, topic_name, again),))
    assert client.ask(request, 2).responses[0].error_message is None
    changes = ((name, SET, value) for name, value in before.items())
    assert change(client, topic_name, *changes).error_message is None
    assert described() == before
    of_broker = describe(client, ResourceType.BROKER, "0").configs
    given = ((c.name, SET, c.value) for c in of_broker if not c.read_only and c.value is not None)
    assert change(client, "0", *given, kind=ResourceType.BROKER, validate_only=True).error_message is None


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not a list"),
        ([("generation", SET, "0.7")], ErrorCode.INVALID_CONFIG, "generation=0.7 is not allowed"),
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


def test_an_invalid_topic_is_refused_with_the_reason(client: RawClient, topic: str) -> None:
    missing = change(client, "no-such-topic", ("retention.ms", SET, "1"))
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    logger = change(client, "0", ("a", SET, "DEBUG"), kind=8)
    assert (logger.error_code, "type 8" in (logger.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    twice = IncrementalAlterConfigsResource(
        ResourceType.TOPIC, topic, (IncrementalAlterableConfig("retention.ms", SET, "1"),)
    )
    answer = client.ask(IncrementalAlterConfigsRequest((twice, twice)), 1)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert own(client, topic) == {}


def test_a_change_that_is_only_validated_is_not_made(client: RawClient, topic: str) -> None:
    good = change(client, topic, ("retention.ms", SET, "1"), validate_only=True)
    bad = change(client, topic, ("retention.ms", SET, "x"), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_CONFIG)
    assert own(client, topic) == {}


ALL, THIS = "", "0"
"""The names of all brokers together, and of the one that is asked."""


def in_force(client: RawClient, kind: int, name: str, key: str) -> list[tuple[str, str | None, int]]:
    """The value of a property and what it would be without, best first: name, value, source."""
    resource = DescribeConfigsResource(kind, name, (key,))
    (result,) = client.ask(DescribeConfigsRequest((resource,), include_synonyms=True), 4).results
    if not result.configs:
        return []
    (found,) = result.configs
    assert (found.value, found.config_source) == (found.synonyms[0].value, found.synonyms[0].source)
    return [(each.name, each.value, each.source) for each in found.synonyms]


@pytest.mark.long("a broker that is started more than once")
def test_the_brokers_properties_are_changed_at_once_and_after_a_restart(tmp_path: Path) -> None:
    key, topic_key = "message.max.bytes", "max.message.bytes"
    with start_broker({key: 5000}, data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        client.create_topic("own", configs={topic_key: "9000"})
        assert client.produce("t", batch(b"x" * 1000)).error_code == ErrorCode.NONE
        for name, value in ((ALL, "700"), (THIS, "800")):
            assert change(client, name, (key, SET, value), kind=ResourceType.BROKER).error_code == 0
        for _ in range(2):
            assert in_force(client, ResourceType.BROKER, THIS, key) == [
                (key, "800", ConfigSource.DYNAMIC_BROKER_CONFIG),
                (key, "700", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (key, "5000", ConfigSource.STATIC_BROKER_CONFIG),
                (key, "1048588", ConfigSource.DEFAULT_CONFIG),
            ]
            assert in_force(client, ResourceType.BROKER, ALL, key) == [
                (key, "700", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            ]
            assert in_force(client, ResourceType.TOPIC, "own", topic_key)[:2] == [
                (topic_key, "9000", ConfigSource.TOPIC_CONFIG),
                (key, "800", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ]
            assert client.produce("t", batch(b"x" * 1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert client.produce("own", batch(b"x" * 1000)).error_code == ErrorCode.NONE
            client.create_topic("later")
            assert client.produce("later", batch(b"x" * 1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
            client.close()
            broker.stop()
            broker.start()
            client = RawClient(broker.port)
        assert change(client, THIS, (key, DELETE, None), kind=ResourceType.BROKER).error_code == 0
        assert client.produce("t", batch(b"x" * 700)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        replaced = AlterConfigsRequest((AlterConfigsResource(ResourceType.BROKER, ALL),))
        assert client.ask(replaced, 2).responses[0].error_code == ErrorCode.NONE
        assert client.produce("t", batch(b"x" * 1000)).error_code == ErrorCode.NONE
        appended = ("log.cleanup.policy", APPEND, "compact")
        assert change(client, ALL, appended, kind=ResourceType.BROKER).error_code == ErrorCode.NONE
        assert in_force(client, ResourceType.TOPIC, "t", "cleanup.policy")[0] == (
            "log.cleanup.policy", "delete,compact", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        )  # fmt: skip
        client.close()


@pytest.mark.parametrize(
    ("name", "key", "value", "code", "words"),
    [
        (THIS, "num.partitions", "3", ErrorCode.INVALID_REQUEST, "restart"),
        (THIS, "log.retention.hours", "3", ErrorCode.INVALID_REQUEST, "restart"),
        (THIS, "log.retention.mss", "3", ErrorCode.INVALID_CONFIG, "did you mean log.retention.ms"),
        (ALL, "log.retention.ms", "soon", ErrorCode.INVALID_REQUEST, "log.retention.ms=soon"),
        ("1", "log.retention.ms", "3", ErrorCode.INVALID_REQUEST, "this is broker 0"),
    ],
)
def test_a_wrong_change_of_the_broker_is_refused_with_the_reason(
    client: RawClient, name: str, key: str, value: str, code: ErrorCode, words: str
) -> None:
    changes = (("log.segment.bytes", SET, "7777"), (key, SET, value))
    result = change(client, name, *changes, kind=ResourceType.BROKER)
    assert result.error_code == code
    assert words in (result.error_message or "")
    valid = change(client, THIS, changes[0], kind=ResourceType.BROKER, validate_only=True)
    assert valid.error_code == ErrorCode.NONE
    assert (
        in_force(client, ResourceType.BROKER, THIS, "log.segment.bytes")[0][2] == ConfigSource.DEFAULT_CONFIG
    )


@pytest.mark.long("a broker that is started twice")
def test_the_cleaner_follows_changes_while_the_broker_runs() -> None:
    with start_broker({"log.cleaner.backoff.ms": 3_600_000}) as broker, RawClient(broker.port) as client:
        compact = {"cleanup.policy": "compact", "segment.bytes": "200", "min.cleanable.dirty.ratio": "0"}
        client.create_topic("t", configs=compact)
        for number in range(9):
            assert client.produce("t", batch(b"%d" % number)).error_code == ErrorCode.NONE
        assert client.read("t")[0].offset == 0
        changes = (
            ("log.cleaner.backoff.ms", SET, "10"), ("log.cleaner.dedupe.buffer.size", SET, "2000000"),
            ("log.cleaner.io.max.bytes.per.second", SET, "1E9"),
        )  # fmt: skip
        assert change(client, THIS, *changes, kind=ResourceType.BROKER).error_message is None
        until(lambda: client.read("t")[0].offset > 0)
        broker.restart()
        with RawClient(broker.port) as again:
            for _ in range(9):
                assert again.produce("t", batch(b"later")).error_code == ErrorCode.NONE
            until(lambda: again.read("t")[0].value == b"later")


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
    assert told.documentation == "Size at which a new segment file is started."
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
