"""The options of a read of Kafka 0.7: what they say, what is refused, and what is passed over with a word."""

from __future__ import annotations

import logging

import pytest

from pyspark_kafkalog.config.classic_config import Source07Config
from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.row_schema import column_names, columns_of, spark_schema
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    PartitionTimestamps,
    SpecificOffsets,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

V07 = {"protocol": "0.7", "subscribe": "t"}
LISTED = {**V07, "broker.list": "1:one:9092,2:[::1]:9093"}
TODAY = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}


def source(**options: str) -> Source07Config:
    found = parse_batch_options({**LISTED, **options}).v07
    assert found is not None
    return found


def test_brokers_are_listed_or_in_zookeeper() -> None:
    assert source().brokers == ((1, "one", 9092), (2, "::1", 9093))
    assert source().place == "broker.list=1:one:9092,2:[::1]:9093"
    for name in ("zookeeper.connect", "zk.connect", "ZooKeeper.Connect"):
        found = parse_batch_options({**V07, name: "h:2181/kafka-07"}).v07
        assert found is not None
        assert (found.zookeeper_connect, found.brokers) == ("h:2181/kafka-07", ())


def test_the_wire_since_0_8_is_the_default_and_a_read_of_0_7_has_no_client_of_it() -> None:
    for protocol in ({}, {"protocol": "0.8"}):
        options = parse_batch_options({**TODAY, **protocol})
        assert options.v07 is None
        assert options.consumer.bootstrap_servers == "h:9092"
    options = parse_batch_options(LISTED)
    assert options.isolation_level == "read_uncommitted"
    with pytest.raises(InvalidConfig, match=r"protocol=0\.7 is read"):
        _ = options.consumer


def test_properties_of_the_client_have_a_prefix_and_their_older_names() -> None:
    found = source(
        **{"kafka.fetch.size": "5000", "kafka.Buffer.Size": "70000", "kafka.zk.sessiontimeout.ms": "4000"}
    )
    assert (found.fetch_size, found.socket_buffer_bytes) == (5000, 70000)
    assert found.zookeeper_session_timeout_ms == 4000
    defaults = source()
    assert (defaults.fetch_size, defaults.max_message_size) == (1 << 20, 1_000_000)
    for item in describe(Source07Config):
        if item.kind is int:
            with pytest.raises(InvalidConfig, match=f"kafka.{item.name}=x is not allowed"):
                source(**{f"kafka.{item.name}": "x"})


def test_partitions_are_named_by_broker_and_number() -> None:
    t10, t21 = TopicPartition("t", 0, 1), TopicPartition("t", 1, 2)
    options = parse_batch_options(
        {
            "protocol": "0.7", "zk.connect": "h:1", "assign": '{"t":["2-1","1-0"]}',
            "startingOffsets": '{"t":{"1-0":-2,"2-1":115}}', "endingOffsets": '{"t":{"1-0":-1,"2-1":130}}',
        }
    )  # fmt: skip
    assert options.subscription == Assign((t10, t21))
    assert options.start == SpecificOffsets({t10: -2, t21: 115})
    assert options.end == SpecificOffsets({t10: -1, t21: 130})
    timed = parse_batch_options({**LISTED, "startingOffsetsByTimestamp": '{"t":{"1-0":7}}'})
    assert timed.start == PartitionTimestamps({t10: 7})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {**V07},
            "exactly one of zookeeper.connect=host:port,host:port/chroot (or zk.connect, the same) and",
        ),
        ({**V07}, "broker.list=id:host:port,id:host:port; given: none"),
        ({**LISTED, "zk.connect": "h:1"}, "given: zk.connect, broker.list"),
        ({**V07, "zk.connect": "h:1", "zookeeper.connect": "h:1"}, "given: zookeeper.connect, zk.connect"),
        (
            {**V07, "zk.connect": "h"},
            "option: zk.connect=h is not allowed; allowed: host:port, separated",
        ),
        ({**V07, "broker.list": "1:h"}, "option: broker.list=1:h is not allowed; allowed: id:host:port"),
        # By its place in the list it would be broker 0, and another one when the list changes.
        (
            {**V07, "broker.list": "h:9093"},
            "separated by commas, each with its own id",
        ),
        ({**LISTED, "protocol": "0.9"}, "protocol is one of 0.8, 0.7; got '0.9'"),
        (
            {**LISTED, "kafka.bootstrap.servers": "h:1"},
            "kafka.bootstrap.servers has no meaning with protocol=0.7",
        ),
        (
            {**LISTED, "maxRecordsPerPartition": "5"},
            "do not tell how many records lie between them. minPartitions",
        ),
        ({**LISTED, "endingTimestamp": "5"}, "endingTimestamp has no meaning with protocol=0.7: a broker"),
        ({**LISTED, "endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp has no meaning"),
        (
            {**LISTED, "startingOffsets": '{"t":{"0":1}}'},
            "0 is not a partition of topic 't': with protocol=0.7 it is <broker>-<number>, as in \"1-0\"",
        ),
        ({**LISTED, "endingOffsets": '{"t":{"0":1}}'}, "0 is not a partition of topic 't'"),
        ({**LISTED, "startingOffsetsByTimestamp": '{"t":{"0":1}}'}, "0 is not a partition of topic 't'"),
        ({**LISTED, "startingOffsets": '{"t":{"1-0-0":1}}'}, "got {'1-0-0': 1}"),
        ({**LISTED, "startingOffsets": '{"t":{"2147483648-0":1}}'}, "got {'2147483648-0': 1}"),
        ({**TODAY, "startingOffsets": '{"t":{"1-0":1}}'}, "with protocol=0.8 it is a number"),
        ({**TODAY, "zk.connect": "h:1"}, "zk.connect has a meaning with protocol=0.7 only; protocol is 0.8"),
        ({**TODAY, "broker.list": "h:1"}, "broker.list has a meaning with protocol=0.7 only"),
        ({**TODAY, "columns": "innerIndex"}, "columns are some of key, value,"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_batch_options(given)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        ('{"t":[1]}', "1 is not a partition of topic 't': with protocol=0.7"),
        ('{"t":["1"]}', 'with protocol=0.7 {"topicA":["1-0","2-0"]}; got [\'1\'] for \'t\''),
        ('{"t":["a-1"]}', "got ['a-1'] for 't'"),
        ('{"t":"1-1"}', "got '1-1' for 't'"),
    ],
)
def test_partitions_to_assign_are_texts(assign: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_batch_options({"protocol": "0.7", "zk.connect": "h:1", "assign": assign})
    assert said in str(raised.value)


def test_what_has_no_meaning_is_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        source(
            **{
                "kafka.isolation.level": "read_committed",
                "startingOffsetsByTimestampStrategy": "latest",
                "kafka.fetch.sise": "1",
                "kafka.group.id": "g",
            }
        )
    assert [record.getMessage() for record in caplog.records] == [
        "kafka.isolation.level has no meaning in 0.7, which has no transactions: it is ignored",
        "startingOffsetsByTimestampStrategy has no meaning in 0.7, where every time has a segment to begin "
        "with: it is ignored",
        "options: unknown property kafka.fetch.sise is ignored; did you mean kafka.fetch.size?",
    ]


def test_inner_indexes_come_with_the_broker_or_by_name() -> None:
    names = column_names(None, include_headers=False, include_broker=True, per_broker=True)
    assert names[-2:] == ("broker", "innerIndex")
    assert parse_batch_options({**LISTED, "columns": "INNERINDEX,value"}).columns == ("innerIndex", "value")
    schema = spark_schema(("innerIndex", "value"))
    assert columns_of(schema, per_broker=True) == ("innerIndex", "value")
    with pytest.raises(InvalidConfig, match="Wrong: innerIndex int"):
        columns_of(schema)
