"""What users write: round trips of what is right, and an error that says why for the rest."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.config.classic_config import Source07Config
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.datasource.options.option_definitions import READ_OPTIONS, SINK_OPTIONS
from pyspark_kafkalog.datasource.options.read_options import (
    parse_batch_options,
    parse_either_options,
    parse_stream_options,
)
from pyspark_kafkalog.datasource.options.sink_options import parse_sink_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    PartitionTimestamps,
    SpecificOffsets,
    parse_assign,
    parse_offsets,
    parse_partition_timestamps,
)
from pyspark_kafkalog.errors import InvalidConfig, UnsafeStore
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

_topics = st.text(min_size=1, max_size=8)
_partitions = st.builds(
    lambda *where: TopicPartition(*where), _topics, st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1)
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_texts = (
    st.text(max_size=20) | _json.map(json.dumps) | st.sampled_from(["earliest", "1", "t", '{"t":{"0":1}}'])
)


def json_of(offsets: dict[TopicPartition, int]) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        by_topic.setdefault(partition.topic, {})[partition.number] = offset
    return json.dumps(by_topic)


@given(st.dictionaries(_partitions, st.integers(-2, 2**63 - 1), max_size=6))
def test_offsets_are_read_as_they_were_written(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets("startingOffsets", json_of(offsets)) == SpecificOffsets(offsets)


@given(st.dictionaries(_partitions, st.integers(0, 2**63 - 1), max_size=6))
def test_timestamps_are_read_as_they_were_written(times: dict[TopicPartition, int]) -> None:
    read = parse_partition_timestamps("startingOffsetsByTimestamp", json_of(times))
    assert read == PartitionTimestamps(times)


@given(st.sets(_partitions, min_size=1, max_size=6))
def test_assigned_partitions_are_read_sorted(partitions: set[TopicPartition]) -> None:
    by_topic: dict[str, list[int | str]] = {}
    for where in partitions:
        name = where.partition if where.broker == NO_BROKER else where.number
        by_topic.setdefault(where.topic, []).append(name)
    assert parse_assign(json.dumps(by_topic)).partitions == tuple(sorted(partitions))


PARSERS = (parse_batch_options, parse_stream_options, parse_either_options, parse_sink_options)
_CONFIGS = (ConsumerConfig, ProducerConfig, Source07Config, ZooKeeperConfig)
_NAMES = sorted(
    {option.name for option in (*READ_OPTIONS, *SINK_OPTIONS)}
    | {
        f"kafka.{name}"
        for config in _CONFIGS
        for item in describe(config)
        for name in (item.name, *item.aliases)
    }
)
_SERVERS = {"kafka.bootstrap.servers": "h:1"}
_READ = {**_SERVERS, "subscribe": "t"}
_BASES = (
    _READ,
    {**_READ, "offsetsPath": "/lake/_offsets", "loadName": "l"},
    {**_READ, "offsetsPath": "/lake/_offsets", "streamName": "s"},
    {**_READ, "offsetStore": "zookeeper", "zookeeper.connect": "h:1", "kafka.group.id": "g"},
    {"protocol": "0.7", "zookeeper.connect": "h:1", "subscribe": "t"},
    {"protocol": "0.7", "broker.list": "1:h:2", "subscribe": "t"},
    {**_SERVERS, "topic": "t", "transactional.id.prefix": "p"},
)
_REQUIRED = ("subscribe", "kafka.bootstrap.servers", "zookeeper.connect")
_VALUES = st.sampled_from([
    "", " ", "0", "-1", "1", "1.5", "9" * 30, "\u0663", "1e3", "9223372036854775808", "true", "TRUE", "t",
    "earliest", "latest", "group", "file:", "file:/x", "commit:3", "commit:", "commit:3,start", "commit:-1",
    "start,commit:3", "2026-11-21T18:00:00Z", "2026-13-45", "0000-00-00", "99999-01-01T00:00:00Z",
    '{"t":{"0":1}}', '{"t":[0]}', '{"t":"earliest"}', '{"t":"latest"}', '{"t":{"x":1}}', '{"t":{"1-0":5}}',
    '{"t":{"0":1e400}}', '{"t":{"0":NaN}}', '{"":{"0":1}}', "{", "[" * 9999, '{"t":' * 999, "null",
    "h:1", "h:99999", "[::1]:9", "h:1/chroot", "1:h:2", "1:h:2,1:h:3", "http://[", "s3://b/k", "file://other/x",
    "relative", "/lake/\0", "/lake/../..", "(", "[a[b]]", "(?<n>x)", "\0", "\ud800", "a" * 5000, "\u00e9",
    "none", "stage", "replay", "kafka", "zookeeper", "0.7", "0.8", "5m", "5y", "10 s", "partition,partition",
]) | _texts  # fmt: skip


def names(error: Exception, option: str) -> bool:
    """Whether the text has the option's name, or says it in the words of Spark's connector."""
    text = str(error).lower().replace(" ", "")
    return option.lower().removeprefix("kafka.").rstrip("s") in text


def refusals(options: dict[str, str]) -> list[Exception]:
    """What the parsers say against the options: nothing but what is documented may be raised."""
    found: list[Exception] = []
    for parse in PARSERS:
        try:
            parse(options)
        except (InvalidConfig, UnsafeStore) as e:
            found.append(e)
    return found


@given(st.sampled_from(_BASES), st.sampled_from(_NAMES), _VALUES)
def test_one_wrong_option_is_named(base: dict[str, str], option: str, value: str) -> None:
    before = {str(error) for error in refusals(base)}
    for error in refusals({**base, option: value}):
        assert str(error) in before or names(error, option), (option, value, str(error))


@given(
    st.sampled_from(_BASES) | st.just({}),
    st.dictionaries(st.sampled_from(_NAMES) | st.text(min_size=1, max_size=8), _VALUES, max_size=5),
)
def test_any_options_are_understood_or_refused_by_a_name(base: dict[str, str], more: dict[str, str]) -> None:
    for error in refusals({**base, **more}):
        assert any(names(error, option) for option in (*base, *more, *_REQUIRED)), (more, str(error))
