"""W4, W5: which frames can be written; and how their rows come to topics."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_kafkalog.datasource.options.sink_options import parse_sink_options
from pyspark_kafkalog.datasource.sink.sink_rows import NullTopic, check_sink_schema, rows_by_topic
from pyspark_kafkalog.datasource.sink.sink_writer import batch_writer
from pyspark_kafkalog.errors import InvalidConfig

UTC = timezone.utc
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
TEXT, BYTES, INT, LONG, TIME = StringType(), BinaryType(), IntegerType(), LongType(), TimestampType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))
ROW = {"key": BYTES, "value": BYTES, "topic": TEXT, "partition": INT, "offset": LONG, "timestamp": TIME}


def schema_of(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def written(columns: dict[str, DataType], **options: str) -> tuple[str, ...]:
    return check_sink_schema(schema_of(columns), parse_sink_options({**SERVERS, **options}))


def test_the_columns_of_sparks_sink_are_written_and_others_are_not_looked_at() -> None:
    whole = {**ROW, "headers": HEADERS}
    assert written(whole) == ("key", "value", "topic", "partition", "headers")
    assert written(whole, topic="t") == ("key", "value", "partition", "headers")
    assert written(whole, topic="t", includeHeaders="false") == ("key", "value", "partition")
    assert written(ROW, topic="t", includeTimestamp="true") == ("key", "value", "partition", "timestamp")
    assert written({"value": TEXT, "key": TEXT, "topic": TEXT}) == ("value", "key", "topic")
    assert written({"value": TEXT, "Key": INT}, topic="t") == ("value",)
    assert written({"topic": INT, "value": TEXT, "timestamp": INT}, topic="t") == ("value",)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            {"value": TEXT},
            {},
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a "
            "topic. Columns: value",
        ),
        ({"topic": TEXT, "key": TEXT}, {}, "Required attribute 'value' not found. Columns: topic, key"),
        ({"Value": TEXT}, {"topic": "t"}, "attribute 'value' not found. Did you mean the column 'Value'?"),
        ({"value": TEXT}, {"topic": "t", "includeTimestamp": "true"}, "needs a column 'timestamp'"),
    ],
)
def test_w4_a_missing_topic_or_value_is_reported(
    columns: dict[str, DataType], options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        written(columns, **options)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topic": INT}, "topic attribute unsupported type int. topic must be a(n) string"),
        ({"value": LONG}, "value attribute unsupported type bigint. value must be a(n) string or binary"),
        (
            {"key": ArrayType(INT)},
            "key attribute unsupported type array<int>. key must be a(n) string or binary",
        ),
        ({"partition": LONG}, "partition attribute unsupported type bigint. partition must be a(n) int"),
        (
            {"headers": MapType(TEXT, BYTES)},
            "headers attribute unsupported type map<string,binary>. "
            "headers must be a(n) array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_w5_wrong_types_are_reported_in_the_words_of_sparks_sink(
    changed: dict[str, DataType], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        written({**ROW, **changed})


def test_a_column_that_is_there_twice_is_reported() -> None:
    twice = StructType([StructField("value", TEXT), StructField("value", TEXT)])
    with pytest.raises(InvalidConfig, match="each may occur once"):
        check_sink_schema(twice, parse_sink_options({**SERVERS, "topic": "t"}))


def test_w12_overwriting_is_refused() -> None:
    options = parse_sink_options({**SERVERS, "topic": "t"})
    with pytest.raises(InvalidConfig, match="Save mode Overwrite not allowed for Kafka"):
        batch_writer(options, schema_of({"value": TEXT}), overwrite=True)


def by_topic(topics: list[str | None], topic: str | None = None) -> list[tuple[str, list[int]]]:
    batch = pa.record_batch(
        {"topic": pa.array(topics, pa.string()), "value": pa.array(range(len(topics))), "more": topics}
    )
    parts = list(rows_by_topic(batch, ("topic", "value"), topic))
    assert {name for _, part in parts for name in part.schema.names} <= {"value"}
    return [(name, part.column("value").to_pylist()) for name, part in parts]


def test_w1_and_w3_rows_go_where_the_column_says_unless_the_option_does() -> None:
    topics = ["b", "a", "b", "c", "a", "b"]
    assert by_topic(topics) == [("b", [0, 2, 5]), ("a", [1, 4]), ("c", [3])]
    assert by_topic(topics, "t") == [("t", [0, 1, 2, 3, 4, 5])]
    assert by_topic(["a", "a"]) == [("a", [0, 1])]
    assert by_topic([]) == []


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("America/New_York", [17, 7, 5]), ("Europe/Berlin", [11, 1, 0]), ("UTC", [12, 2, 1])],
)
def test_times_without_a_zone_are_those_of_the_session(zone: str, hours: list[int]) -> None:
    """As Spark casts them: New York skips 2:30 on 8 March, and has 1:30 twice on 1 November."""
    noon, spring, autumn = "2026-01-01T12:00", "2026-03-08T02:30", "2026-11-01T01:30"
    times = [datetime.fromisoformat(text) for text in (noon, spring, autumn)]
    utc = [t.replace(hour=hour, tzinfo=UTC) for t, hour in zip(times, hours, strict=True)]
    batch = pa.record_batch({"timestamp": pa.array([None, *times], pa.timestamp("us"))})
    ((_, sent),) = rows_by_topic(batch, ("timestamp",), "t", zone)
    assert sent.column("timestamp").to_pylist() == [None, *utc]
    ((_, same),) = rows_by_topic(sent, ("timestamp",), "t", "Asia/Tokyo")
    assert same.column("timestamp").to_pylist() == [None, *utc]


def test_times_without_a_zone_are_refused_if_the_session_has_none() -> None:
    batch = pa.record_batch({"timestamp": pa.array([0], pa.timestamp("us")), "value": ["v"]})
    with pytest.raises(
        InvalidConfig, match=r"set spark.sql.session.timeZone, or CAST\(timestamp AS TIMESTAMP"
    ):
        list(rows_by_topic(batch, ("timestamp",), "t"))
    assert [part.num_rows for _, part in rows_by_topic(batch, ("value",), "t")] == [1]


def test_w11_a_row_without_a_topic_is_reported_and_nothing_of_its_batch_goes_anywhere() -> None:
    with pytest.raises(NullTopic, match=r"\[KAFKA_NULL_TOPIC_IN_DATA\].*contains a null topic"):
        by_topic(["a", None])
    with pytest.raises(NullTopic):
        by_topic([None])
    assert by_topic([None], "t") == [("t", [0])]
