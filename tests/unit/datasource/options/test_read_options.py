"""What the options mean, and what is said of wrong ones (in words known from Spark's connector)."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    EARLIEST,
    LATEST,
    Assign,
    GlobalTimestamp,
    PartitionTimestamps,
    SpecificOffsets,
    Subscribe,
    SubscribePattern,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import IsolationLevel, TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_b1_the_defaults_are_earliest_to_latest() -> None:
    options = parse_batch_options({**SERVERS, "subscribe": "t"})
    assert (options.start, options.end) == (EARLIEST, LATEST)
    assert options.subscription == Subscribe(("t",))
    assert options.consumer.isolation is IsolationLevel.READ_UNCOMMITTED
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.poll_timeout_ms == 120_000
    assert (options.offset_retries, options.offset_retry_interval_ms) == (3, 1000)
    assert options.consumer.bootstrap_servers == "127.0.0.1:9092"
    assert options.consumer.max_partition_fetch_bytes == 8 << 20


def test_s75_and_s76_names_and_words_are_read_in_any_case() -> None:
    options = parse_batch_options(
        {
            **SERVERS,
            "SUBSCRIBE": "t",
            "STARTINGOFFSETS": "eArLiEst",
            "endingoffsets": "laTest",
            "failOnDataLoss": "FALSE",
            "Kafka.Isolation.Level": "READ_COMMITTED",
        }
    )
    assert (options.start, options.end) == (EARLIEST, LATEST)
    assert not options.fail_on_data_loss
    assert options.consumer.isolation is IsolationLevel.READ_COMMITTED


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": " a , ,b,a"}, Subscribe(("a", "b"))),
        ({"subscribePattern": "topic-.*"}, SubscribePattern("topic-.*")),
        ({"subscribePattern": "(?<name>t)x"}, SubscribePattern("(?<name>t)x")),
        ({"assign": '{"t":[1,0],"s":[2]}'}, Assign((TopicPartition("s", 2), T0, T1))),
    ],
)
def test_topics_are_named_listed_or_matched(given: dict[str, str], expected: object) -> None:
    assert parse_batch_options({**SERVERS, **given}).subscription == expected


def test_a_pattern_must_match_the_whole_name() -> None:
    pattern = SubscribePattern("a.b|c")
    assert [pattern.matches(name) for name in ("axb", "c", "cc", "zaxb")] == [True, True, False, False]


def test_a_pattern_has_the_meaning_that_it_has_in_java() -> None:
    for java, matched in ((r"\p{Lower}{1,2}", ["a", "bb"]), (r"(?<n>b)\k<n>", ["bb"]), (r"\w+", ["a", "bb"])):
        pattern = parse_batch_options({**SERVERS, "subscribePattern": java}).subscription
        assert isinstance(pattern, SubscribePattern)
        assert [name for name in ("a", "bb", "é") if pattern.matches(name)] == matched
    for java in ("[a-z&&[^b]]+", "(?P<n>a)", "x(?i)a", "("):
        with pytest.raises(
            InvalidConfig, match="is not a regular expression that means the same in Java and"
        ):
            parse_batch_options({**SERVERS, "subscribePattern": java})


def test_b3_json_offsets_take_numbers_placeholders_and_whole_topics() -> None:
    options = parse_batch_options(
        {
            **SERVERS,
            "subscribe": "t,s",
            "startingOffsets": '{"t":{"0":23,"1":-2},"s":"Earliest"}',
            "endingOffsets": '{"t":{"0":45,"1":-1},"s":"latest"}',
        }
    )
    assert options.start == SpecificOffsets({T0: 23, T1: -2}, {"s": -2})
    assert options.end == SpecificOffsets({T0: 45, T1: -1}, {"s": -1})


def test_b15_the_global_timestamp_beats_those_by_partition_which_beat_offsets() -> None:
    by_partition = '{"t":{"0":1000,"1":2000}}'
    given = {**SERVERS, "subscribe": "t", "startingOffsets": "earliest", "endingOffsets": "latest"}
    given |= {"startingOffsetsByTimestamp": by_partition, "endingOffsetsByTimestamp": by_partition}
    options = parse_batch_options(given)
    assert options.start == options.end == PartitionTimestamps({T0: 1000, T1: 2000})
    given |= {"startingTimestamp": "5", "endingTimestamp": "9"}
    options = parse_batch_options(given)
    assert (options.start, options.end) == (GlobalTimestamp(5), GlobalTimestamp(9))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "One of the following options must be specified for Kafka source: subscribe, subscribepattern"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "Only one of the following options can be specified"),
        ({"assign": "{}"}, "No topicpartitions to assign as specified value for option 'assign' is '{}'"),
        ({"assign": '{"t":["0"]}'}, 'assign is JSON like {"topicA":[0,1]'),
        ({"assign": "nonsense"}, "got 'nonsense'"),
        (
            {"subscribe": " , "},
            "No topics to subscribe to as specified value for option 'subscribe' is ' , '",
        ),
        ({"subscribePattern": ""}, "Pattern to subscribe is empty as specified value"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"subscribePattern": "[[a]"}, "a regular expression that means the same in Java and in Python"),
        ({"subscribe": "t", "minPartitions": "0"}, "minPartitions must be positive; got '0'"),
        (
            {"subscribe": "t", "startingOffsets": "latest"},
            "starting offset can't be latest for batch queries on Kafka",
        ),
        (
            {"subscribe": "t", "startingOffsets": '{"t":{"0":-1}}'},
            "startingOffsets for t-0 can't be latest for batch queries on Kafka",
        ),
        (
            {"subscribe": "t", "endingOffsets": "earliest"},
            "ending offset can't be earliest for batch queries on Kafka",
        ),
        (
            {"subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'},
            "ending offset for t-0 can't be earliest for batch queries on Kafka",
        ),
        ({"subscribe": "t", "startingOffsets": '{"t":"latest"}'}, "startingOffsets for t can't be latest"),
        ({"subscribe": "t", "startingTimestamp": "soon"}, "Expected a single long value, got soon"),
        ({"subscribe": "t", "endingTimestamp": "1.5"}, "Expected a single long value, got 1.5"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":"x"}}'}, "startingOffsets is"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'}, "got -3 for t-0"),
        ({"subscribe": "t", "startingOffsets": "5"}, "got '5'"),
        ({"subscribe": "t", "startingOffsetsByTimestamp": '{"t":{"0":-5}}'}, "got -5 for t-0"),
        (
            {"subscribe": "t", "startingOffsetsByTimestampStrategy": "skip"},
            "startingOffsetsByTimestampStrategy is one of error, latest; got 'skip'",
        ),
        ({"subscribe": "t", "failOnDataLoss": "yes"}, "failOnDataLoss is one of true, false; got 'yes'"),
        ({"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "0"}, "kafkaConsumer.pollTimeoutMs is a whole"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "Did you mean 'startingOffsets'?"),
        ({"subscribe": "t", "zzz": "1"}, "Unknown option 'zzz'. Known: kafka.bootstrap.servers, protocol"),
        (
            {"subscribe": "t", "ssl.truststore.location": "/x"},
            "Unknown option 'ssl.truststore.location'. Did you mean 'kafka.ssl.truststore.location'?",
        ),
        ({"subscribe": "t", "sasl.mecanism": "PLAIN"}, "Did you mean 'kafka.sasl.mechanism'?"),
        ({"subscribe": "t", "client.dns.lookup": "x"}, "Did you mean 'kafka.client.dns.lookup'?"),
        ({"subscribe": "t", "bootstrap.servers": "a:1"}, "Did you mean 'kafka.bootstrap.servers'?"),
        ({"subscribe": "t", "auto.offset.reset": "latest"}, "is not supported. Instead set"),
        ({"subscribe": "t", "columns": "value,colour"}, "columns are some of key, value, topic"),
        ({"subscribe": "t", "columns": "value,VALUE"}, "columns names one twice"),
        ({"subscribe": "t", "columns": " "}, "columns are some of"),
        ({"subscribe": "t", "kafka.auto.offset.reset": "latest"}, "is not supported. Instead set"),
        ({"subscribe": "t", "kafka.key.deserializer": "x"}, "'kafka.key.deserializer' is not supported"),
        ({"subscribe": "t", "kafka.value.deserializer": "x"}, "'kafka.value.deserializer' is not supported"),
        ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, ".enable.auto.commit' is not supported"),
        ({"subscribe": "t", "kafka.interceptor.classes": "x"}, "interceptor.classes' is not supported"),
        ({"subscribe": "t", "onCorruptBatch": "ignore"}, "onCorruptBatch is one of fail, skip"),
        (
            {"subscribe": "t", "kafka.max.partition.fetch.bytes": "1 MB"},
            "option: kafka.max.partition.fetch.bytes=1 MB is not allowed; allowed: 1 to 2147483647",
        ),
        (
            {"subscribe": "t", "kafka.bootstrap.servers": "host"},
            "option: kafka.bootstrap.servers=host is not",
        ),
        (
            {"subscribe": "t", "kafka.security.protocol": "TLS"},
            "option: kafka.security.protocol=TLS",
        ),
        (
            {"subscribe": "t", "startingTimestamp": str(2**63)},
            "Expected a single long value, got 9223372036854",
        ),
        (
            {"subscribe": "t", "startingOffsets": '{"t":{"0":9223372036854775808}}'},
            "got {'0': 9223372036854775808}",
        ),
        ({"subscribe": "t", "startingOffsets": '{"t":{"2147483648":0}}'}, "got {'2147483648': 0}"),
    ],
)
def test_b17_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_batch_options({**SERVERS, **given})
    assert said in str(raised.value)


def test_b17_the_servers_must_be_given() -> None:
    with pytest.raises(InvalidConfig, match=r"Option 'kafka\.bootstrap\.servers' must be specified"):
        parse_batch_options({"subscribe": "t"})


def test_r17_an_isolation_level_is_one_of_two() -> None:
    with pytest.raises(InvalidConfig, match=r"kafka\.isolation\.level is one of read_uncommitted, read_c"):
        parse_batch_options({**SERVERS, "subscribe": "t", "kafka.isolation.level": "serializable"})


def test_properties_of_the_client_are_passed_on_without_their_prefix(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {
        "kafka.fetch.max.bytes": "1048576",
        "KAFKA.Client.Id": "me",
        "kafka.acks": "1",
        "kafka.fetch.mxa.bytes": "1",
        "kafka.group.id": "g",
    }
    options = parse_batch_options({**SERVERS, "subscribe": "t", **given})
    assert (options.consumer.fetch_max_bytes, options.consumer.client_id) == (1 << 20, "me")
    (warned,) = caplog.messages  # Kafka's own names, such as acks, are no mistakes
    assert warned == (
        "options: unknown property kafka.fetch.mxa.bytes is ignored; did you mean kafka.fetch.max.bytes?"
    )
    assert "group.id" not in caplog.text


def test_every_property_has_the_spelling_that_spark_hands_on() -> None:
    names = [name for p in describe(ConsumerConfig) for name in (p.name, *p.aliases)]
    assert [name for name in names if name != name.lower()] == []


def test_kafkas_name_goes_before_librdkafkas() -> None:
    given = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.mechanisms": "GSSAPI"}
    options = parse_batch_options(
        {**SERVERS, "subscribe": "t", "kafka.security.protocol": "SASL_PLAINTEXT", **given}
    )
    assert options.consumer.sasl_mechanism == "PLAIN"
