"""What the options of a write mean, and what is said of wrong ones (in words known from Spark's sink)."""

from __future__ import annotations

import logging
import re

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_kafkalog.datasource.options.option_definitions import Unit
from pyspark_kafkalog.datasource.options.sink_options import REFUSED, parse_sink_options
from pyspark_kafkalog.datasource.source import sink_options_for, with_options
from pyspark_kafkalog.errors import InvalidConfig

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_a_write_is_idempotent_and_its_topic_comes_from_the_rows_by_default() -> None:
    options = parse_sink_options(SERVERS)
    assert options.topic is None
    assert options.include_headers
    assert not options.include_timestamp
    assert options.producer.bootstrap_servers == "127.0.0.1:9092"
    assert options.producer.enable_idempotence
    assert options.producer.client_id == "spark-kafka-sink"
    assert options.producer.batch_size == 524_288


def test_names_and_words_are_read_in_any_case_and_properties_under_todays_and_older_names() -> None:
    options = parse_sink_options(
        {**SERVERS, "TOPIC": " Clicks ", "INCLUDEheaders": "False", "Kafka.Compression.Type": "zstd"}
    )
    assert (options.topic, options.include_headers) == ("Clicks", False)
    assert options.producer.compression_type == "zstd"
    given = {"kafka.acks": "1", "kafka.compression.codec": "lz4", "kafka.batch.size": "1000"}
    producer = parse_sink_options({**SERVERS, **given}).producer
    assert (producer.acks, producer.compression_type, producer.batch_size) == ("1", "lz4", 1000)
    assert not producer.enable_idempotence


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"),
        ({**SERVERS, "kafka.acks": "2"}, "kafka.acks=2 is not allowed; allowed: one of all, -1, 1, 0"),
        ({**SERVERS, "kafka.batch.size": "many"}, "kafka.batch.size=many is not allowed"),
        ({**SERVERS, "includeHeaders": "maybe"}, "includeHeaders is one of true, false; got 'maybe'"),
        ({**SERVERS, "topics": "t"}, "Unknown option 'topics'. Did you mean 'topic'?"),
        ({**SERVERS, "compression": "zstd"}, "'compression'. Did you mean 'kafka.compression.type'?"),
        ({**SERVERS, "zzz": "1"}, "Unknown option 'zzz'. Known: kafka.bootstrap.servers,"),
        ({**SERVERS, "ssl.keystore.location": "/x"}, "Did you mean 'kafka.ssl.keystore.location'?"),
        ({**SERVERS, "transactional.id": "x"}, "have the option 'transactional.id.prefix'"),
        ({**SERVERS, "transactional.id.prefix": "a b"}, "prefix is up to 200 letters, digits"),
        ({**SERVERS, "transactional.write.id": "w"}, "transactional.write.id needs transactional.id.prefix"),
        ({**SERVERS, "transactional.id.prefix": "p", "kafka.acks": "1"}, "transactional.id=p is not allowed"),
        ({**SERVERS, "protocol": "0.7"}, "protocol=0.7 is for reads. Its topics are written with"),
        ({**SERVERS, "path": "t"}, "Unknown option 'path'. The option 'topic' says where rows go"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        parse_sink_options(given)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.key.serializer", "serialized with ByteArraySerializer"),
        ("kafka.value.serializer", "serialized with ByteArraySerializer"),
        ("kafka.partitioner.class", "add a column 'partition'"),
        ("kafka.interceptor.classes", "Java"),
        ("kafka.transactional.id", "transactional.id.prefix"),
    ],
)
def test_w7_options_that_cannot_be_had_are_refused_with_the_way_out(name: str, said: str) -> None:
    assert name in REFUSED
    with pytest.raises(InvalidConfig, match=f"Kafka option '{name}' is not supported") as caught:
        parse_sink_options({**SERVERS, name.upper(): "x"})
    assert said in str(caught.value)


def test_options_of_reads_and_of_spark_itself_are_not_mistakes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_sink_options({**SERVERS, "checkpointLocation": "/c", "queryName": "q"})
        assert caplog.messages == []
        parse_sink_options({**SERVERS, "startingOffsets": "earliest"})
    assert caplog.messages == ["option startingOffsets has no meaning in a write and is ignored"]


def test_a_prefix_makes_the_producer_one_of_transactions_that_may_stay_open_for_a_batch() -> None:
    given = {**SERVERS, "transactional.id.prefix": "p", "transactional.write.id": "day-1"}
    options = parse_sink_options(given)
    assert options.transactional_prefix == "p"
    assert options.unit == Unit("write day-1", 0)
    assert options.producer.transaction_timeout_ms == 900_000
    given["kafka.transaction.timeout.ms"] = "5000"
    assert parse_sink_options(given).producer.transaction_timeout_ms == 5000
    assert parse_sink_options(SERVERS).producer.transactional_id is None


def test_a_write_that_says_where_it_goes_takes_nothing_from_the_table_that_its_rows_are_of() -> None:
    field = StructField("value", StringType())
    table = {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:9093"}
    schema = with_options(StructType([field]), table)
    assert sink_options_for({"topic": "u"}, schema) == {**table, "topic": "u"}
    given = {"Kafka.Bootstrap.Servers": "127.0.0.1:9092"}
    assert sink_options_for(given, schema) == given
