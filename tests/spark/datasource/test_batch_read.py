"""Lines B1-B22 of the checklist on a real session and a real broker; each test names its line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.functions import window

from kafkalog_broker.embedded import start_broker
from tests.support.datasource.spark_topics import Topic, record
from tests.support.protocol.raw_client import RawClient
from tests.support.spark.frame_rows import assert_rows
from tests.support.until import until

NewTopic = Callable[..., Topic]
Load = Callable[..., Any]


def values(frame: Any) -> list[str]:
    """The values as text, sorted as numbers where they are."""
    found = [row.value.decode() for row in frame.select("value").collect()]
    return sorted(found, key=lambda text: (int(text) if text.isdecimal() else -1, text))


def numbers(*ranges: range) -> list[str]:
    return [str(n) for n in sorted(n for r in ranges for n in r)]


@pytest.fixture
def three(new_topic: NewTopic) -> Topic:
    """0-9 in partition 0, 10-19 in 1, 20 in 2, a batch each; a time is 1000 + ten times its number."""
    topic = new_topic(partitions=3)
    topic.add(*range(10), partition=0, timestamp=1000, step=10)
    topic.add(*range(10, 20), partition=1, timestamp=1100, step=10)
    topic.add(20, partition=2, timestamp=1200)
    return topic


def test_b1_by_default_everything_is_read(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name)
    assert values(frame) == numbers(range(21))
    assert frame.rdd.getNumPartitions() == 3


def test_b2_explicit_earliest_and_latest_are_the_default(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name, startingOffsets="earliest", endingOffsets="latest")
    assert values(frame) == numbers(range(21))


def test_b3_offsets_by_partition_with_placeholders(three: Topic, load: Load) -> None:
    frame = load(
        subscribe=three.name,
        startingOffsets=three.offsets(p0=-2, p1=4, p2=0),
        endingOffsets=three.offsets(p0=3, p1=-1, p2=1),
    )
    assert values(frame) == numbers(range(3), range(14, 20), range(20, 21))


def test_b3_a_whole_topic_may_be_named(three: Topic, load: Load) -> None:
    start = f'{{"{three.name}":"earliest"}}'
    assert load(subscribe=three.name, startingOffsets=start).count() == 21


@pytest.mark.parametrize("split", [{}, {"minPartitions": "6"}])
def test_b4_and_b19_latest_binds_on_each_action(
    new_topic: NewTopic, load: Load, split: dict[str, str]
) -> None:
    topic = new_topic()
    topic.add(*range(20))
    frame = load(subscribe=topic.name, **split)
    assert values(frame) == numbers(range(20))
    topic.add(*range(20, 25))
    assert values(frame) == numbers(range(25))
    if split:
        assert frame.rdd.getNumPartitions() == 6


def test_b5_earliest_binds_on_each_action_after_retention(load: Load) -> None:
    with start_broker(**{"log.retention.check.interval.ms": "100"}) as own, RawClient(own.port) as raw:
        small = {"segment.bytes": "200", "retention.bytes": "400", "retention.ms": "-1"}
        assert raw.create_topic("short", 1, small).error_code == 0
        topic = Topic(raw, "short")
        topic.add(0)
        options = {"subscribe": "short", "kafka.bootstrap.servers": own.bootstrap_servers}
        frame = load(**options, failOnDataLoss="true")
        assert values(frame) == ["0"]
        for n in range(1, 30):
            topic.add(n)
        # These batches make segments of three; what retention leaves holds 400 bytes.
        until(lambda: raw.offset_at("short", -2).offset == 24)
        assert values(frame) == numbers(range(24, 30))


def test_b6_headers_keep_order_and_repeats_and_none_is_null(new_topic: NewTopic, load: Load) -> None:
    topic = new_topic()
    topic.add_records(
        [
            record(b"many", headers=(("a", b"1"), ("b", None), ("a", b"2"))),
            record(b"none"),
            record(b"empty", headers=(("", b""),)),
        ]
    )
    frame = load(subscribe=topic.name, includeHeaders="true")
    assert_rows(
        frame.select("value", "headers"),
        "value binary, headers array<struct<key:string,value:binary>>",
        [(b"many", [("a", b"1"), ("b", None), ("a", b"2")]), (b"none", None), (b"empty", [("", b"")])],
    )


def test_the_row_is_that_of_sparks_connector(new_topic: NewTopic, load: Load, spark: Any) -> None:
    topic = new_topic(partitions=2)
    topic.add_records(
        [record(b"v", b"k", timestamp=1_700_000_000_123), record(None, None, timestamp=0)], partition=1
    )
    frame = load(subscribe=topic.name)
    expected = spark.createDataFrame(
        [
            (
                bytearray(b"k"),
                bytearray(b"v"),
                topic.name,
                1,
                0,
                datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=timezone.utc),
                0,
            ),
            (None, None, topic.name, 1, 1, datetime(1970, 1, 1, tzinfo=timezone.utc), 0),
        ],
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int",
    )
    assert_df_equality(frame, expected, ignore_row_order=True)


def test_s30_keys_and_values_may_be_null(new_topic: NewTopic, load: Load) -> None:
    topic = new_topic()
    topic.add_records([record(b"v", None), record(None, b"k"), record(None, None), record(b"", b"")])
    assert_rows(
        load(subscribe=topic.name).select("offset", "key", "value"),
        "offset bigint, key binary, value binary",
        [(0, None, b"v"), (1, b"k", None), (2, None, None), (3, b"", b"")],
    )


@pytest.mark.long("several Spark jobs")
def test_s21_times_can_be_grouped_by_window(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name).groupBy(window("timestamp", "100 milliseconds")).count()
    found = frame.selectExpr("unix_millis(window.start) start", "count")
    assert_rows(found, "start bigint, count bigint", [(1000, 10), (1100, 10), (1200, 1)])


def test_s75_and_s76_options_in_any_case(three: Topic, load: Load) -> None:
    options = {
        "SUBSCRIBE": three.name,
        "STARTINGOFFSETS": f'{{"{three.name}":"eArLiEst"}}',
        "endingoffsets": "laTest",
        "IncludeHeaders": "TRUE",
    }
    frame = load(**options)
    assert frame.columns[-1] == "headers"
    assert frame.count() == 21


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param("1050", "1150", [range(5, 15)], id="B7 both"),
        pytest.param("1050", None, [range(5, 21)], id="B10 only a start"),
        pytest.param(None, "1150", [range(15)], id="B11 only an end"),
    ],
)
def test_b7_b10_b11_timestamps_by_partition(
    three: Topic, load: Load, start: str | None, end: str | None, expected: list[range]
) -> None:
    def everywhere(timestamp: str) -> str:
        return f'{{"{three.name}":{{"0":{timestamp},"1":{timestamp},"2":{timestamp}}}}}'

    options = {"startingOffsetsByTimestampStrategy": "latest"}
    if start is not None:
        options["startingOffsetsByTimestamp"] = everywhere(start)
    if end is not None:
        options["endingOffsetsByTimestamp"] = everywhere(end)
    assert values(load(subscribe=three.name, **options)) == numbers(*expected)


def test_b8_a_start_by_time_and_an_end_by_offset(three: Topic, load: Load) -> None:
    frame = load(
        subscribe=three.name,
        startingOffsetsByTimestamp=f'{{"{three.name}":{{"0":1050,"1":1150,"2":1200}}}}',
        endingOffsets=three.offsets(p0=8, p1=-1, p2=1),
    )
    assert values(frame) == numbers(range(5, 8), range(15, 21))


def test_b9_a_start_by_offset_and_an_end_by_time(three: Topic, load: Load) -> None:
    frame = load(
        subscribe=three.name,
        startingOffsets=three.offsets(p0=2, p1=-2, p2=0),
        endingOffsetsByTimestamp=f'{{"{three.name}":{{"0":1050,"1":1120,"2":1200}}}}',
    )
    assert values(frame) == numbers(range(2, 5), range(10, 12))


def test_b12_one_time_for_all_partitions(three: Topic, load: Load) -> None:
    frame = load(
        subscribe=three.name,
        startingTimestamp="1050",
        endingTimestamp="1150",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values(frame) == numbers(range(5, 15))


def test_b13_a_start_after_the_last_record_is_an_error(three: Topic, load: Load) -> None:
    with pytest.raises(AnalysisException, match="No offset matched from request of topic-partition"):
        load(subscribe=three.name, startingTimestamp="99999").collect()


def test_b14_an_end_after_the_last_record_is_latest(three: Topic, load: Load) -> None:
    assert load(subscribe=three.name, endingTimestamp="99999").count() == 21


def test_b15_the_global_time_wins_over_the_others(three: Topic, load: Load) -> None:
    frame = load(
        subscribe=three.name,
        startingTimestamp="1195",
        startingOffsetsByTimestamp=f'{{"{three.name}":{{"0":1050,"1":1150,"2":1200}}}}',
        startingOffsets="earliest",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values(frame) == ["20"]


def test_b16_a_union_of_a_frame_with_itself_has_every_row_twice(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name)
    assert values(frame.union(frame)) == sorted(numbers(range(21)) * 2, key=int)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "One of the following options must be specified for Kafka source"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "Only one of the following options can be specified"),
        ({"subscribe": "a", "kafka.compression.codec": "x", "columns": "nonsense"}, "columns are some of"),
        ({"subscribe": "a", "kafka.security.protocol": "SASL_SSL"}, "security.protocol"),
    ],
)
def test_b17_wrong_options_fail_at_load(load: Load, options: dict[str, str], said: str) -> None:
    with pytest.raises(AnalysisException) as raised:
        load(**options)
    assert said in str(raised.value)


def test_b17_what_only_a_stream_may_say_fails_when_a_batch_begins(load: Load) -> None:
    frame = load(subscribe="a", startingOffsets="latest")
    with pytest.raises(AnalysisException, match="starting offset can't be latest for batch"):
        frame.collect()


def test_b20_ranges_must_name_the_partitions_there_are(three: Topic, load: Load) -> None:
    with pytest.raises(AnalysisException, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        load(subscribe=three.name, startingOffsets=three.offsets(p0=0, p1=0)).collect()


def test_b21_a_start_after_its_end_as_given(three: Topic, load: Load) -> None:
    with pytest.raises(AnalysisException, match="The specified start offset 3 is greater than the end"):
        load(
            subscribe=three.name,
            startingOffsets=three.offsets(p0=3, p1=0, p2=0),
            endingOffsets=three.offsets(p0=1, p1=-1, p2=-1),
        ).collect()


@pytest.mark.parametrize("split", [{}, {"minPartitions": "9"}])
def test_b22_a_start_after_its_end_once_resolved(three: Topic, load: Load, split: dict[str, str]) -> None:
    with pytest.raises(
        (AnalysisException, PythonException), match="The resolved start offset 15 is greater than the resol"
    ):
        load(
            subscribe=three.name,
            startingOffsets=three.offsets(p0=15, p1=0, p2=0),
            endingOffsets=three.offsets(p0=-1, p1=-1, p2=-1),
            **split,
        ).collect()


def test_topics_by_pattern_and_partitions_by_assignment(new_topic: NewTopic, load: Load) -> None:
    first, second = new_topic(partitions=2, prefix="pattern-x"), new_topic(prefix="pattern-y")
    first.add(1, partition=0)
    first.add(2, partition=1)
    second.add(3)
    assert values(load(subscribePattern=f"{first.name}|{second.name}")) == ["1", "2", "3"]
    assert values(load(subscribePattern="pattern-x.*")) == ["1", "2"]
    assert values(load(subscribe=f"{first.name}, {second.name}")) == ["1", "2", "3"]
    assigned = f'{{"{first.name}":[1],"{second.name}":[0]}}'
    assert values(load(assign=assigned)) == ["2", "3"]
    assert load(subscribePattern="nothing-is-called-so").count() == 0


def test_r16_a_topic_that_is_not_there_is_named(load: Load) -> None:
    with pytest.raises(AnalysisException, match="topic 'not-there' is not on"):
        load(subscribe="not-there", **{"fetchOffset.numRetries": "0"}).collect()


def test_only_the_columns_asked_for_are_there(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name, columns="offset,timestamp")
    assert frame.columns == ["offset", "timestamp"]
    assert frame.agg({"offset": "sum"}).first()[0] == 90
    by_schema = load(schema="value binary, partition int", subscribe=three.name)
    assert by_schema.columns == ["value", "partition"]
    assert values(by_schema) == numbers(range(21))


@pytest.mark.parametrize("schema", ["value string", "colour int", "offset int"])
def test_a_schema_that_is_not_ours_is_refused_with_the_one_that_is(
    three: Topic, load: Load, schema: str
) -> None:
    with pytest.raises(AnalysisException, match=r"Kafka source has a fixed schema.*key binary, value binary"):
        load(schema=schema, subscribe=three.name).collect()


def test_a_time_that_the_session_makes_one_without_a_zone_is_that_of_its_zone(
    spark: Any, three: Topic, load: Load
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        local = load(schema="offset bigint, timestamp timestamp", subscribe=three.name)
        assert local.schema["timestamp"].dataType.simpleString() == "timestamp_ntz"
        assert local.selectExpr("max(timestamp)").first()[0] == datetime(1969, 12, 31, 19, 0, 1, 200_000)
        frame = load(schema="offset bigint, timestamp timestamp_ltz", subscribe=three.name)
        assert frame.selectExpr("unix_millis(max(timestamp))").first()[0] == 1200
    finally:
        spark.conf.unset("spark.sql.timestampType")
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_the_broker_that_served_a_row_is_its_last_column(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name, includeBroker="true", includeHeaders="true")
    assert frame.columns[-2:] == ["headers", "broker"]
    assert [row.broker for row in frame.select("broker").distinct().collect()] == [0]


def test_r1_one_task_for_each_partition_and_c5_more_where_asked(new_topic: NewTopic, load: Load) -> None:
    topic = new_topic(partitions=2)
    for first in range(0, 100, 10):  # batches of ten: the tasks' edges fall inside them
        topic.add(*range(first, first + 10))
    frame = load(subscribe=topic.name, maxRecordsPerPartition="7")
    assert frame.rdd.getNumPartitions() == 15 + 1  # one for the partition that is empty now
    assert values(frame) == numbers(range(100))
    assert load(subscribe=topic.name).rdd.getNumPartitions() == 2


def test_an_offset_that_is_gone_fails_the_read_unless_loss_is_allowed(
    new_topic: NewTopic, load: Load
) -> None:
    topic = new_topic()
    topic.add(*range(5))
    beyond = {"startingOffsets": topic.offsets(p0=7), "endingOffsets": topic.offsets(p0=9)}
    with pytest.raises(PythonException) as raised:
        load(subscribe=topic.name, **beyond).collect()
    assert "KAFKA_DATA_LOSS" in str(raised.value)
    assert f"[7, 9) of {topic.name}-0: the log holds [0, 5)" in str(raised.value)
    assert "failOnDataLoss" in str(raised.value)
    assert load(subscribe=topic.name, failOnDataLoss="false", **beyond).count() == 0


def test_c1_a_broker_that_is_not_there_is_reported_by_address(load: Load) -> None:
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:9"):
        load(
            subscribe="t",
            **{
                "kafka.bootstrap.servers": "127.0.0.1:9",
                "fetchOffset.numRetries": "0",
                "kafka.request.timeout.ms": "1500",
            },
        ).collect()


def test_limit_and_show_end_early_without_harm(three: Topic, load: Load) -> None:
    frame = load(subscribe=three.name)
    assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 21
