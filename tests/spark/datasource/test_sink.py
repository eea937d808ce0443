"""What Spark does with the sink: batches, streams with a checkpoint, save modes, progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.functions import array, col, concat, concat_ws, lit, struct, when

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.spark_topics import Topic

NewTopic = Callable[..., Topic]
Load = Callable[..., Any]


@pytest.fixture
def write(server: EmbeddedBroker) -> Callable[..., None]:
    """``write(frame, topic=...)``: append the frame."""

    def save(frame: Any, mode: str = "append", **options: str) -> None:
        writer = frame.write.format("kafkalog").option("kafka.bootstrap.servers", server.bootstrap_servers)
        writer.options(**options).mode(mode).save()

    return save


def values(load: Load, topic: Topic) -> list[str]:
    return sorted(row.value.decode() for row in load(subscribe=topic.name).select("value").collect())


@pytest.mark.long("several Spark jobs")
def test_w13_rows_made_by_expressions_are_written_with_all_their_columns(
    spark: Any, new_topic: NewTopic, load: Load, write: Callable[..., None]
) -> None:
    one, two = new_topic(partitions=3), new_topic(partitions=3)
    number = col("id")
    header = struct(lit("n").alias("key"), number.cast("string").cast("binary").alias("value"))
    frame = spark.range(0, 100, 1, 2).select(
        when(number % 2 == 0, one.name).otherwise(two.name).alias("topic"),
        when(number < 90, number.cast("string")).alias("key"),
        concat(lit("v"), number.cast("string")).cast("binary").alias("value"),
        (number % 3).cast("int").alias("partition"),
        when(number > 0, array(header, header)).alias("headers"),
        lit("ignored").alias("else"),
    )
    write(frame)
    written = frame.withColumn("key", col("key").cast("binary")).drop("else")
    found = load(subscribe=f"{one.name},{two.name}", includeHeaders="true").select(written.columns)
    assert_df_equality(found, written, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.long("several Spark jobs")
def test_a_topic_can_be_copied_as_it_is_read(
    new_topic: NewTopic, load: Load, write: Callable[..., None]
) -> None:
    source, target = new_topic(partitions=2), new_topic(partitions=2)
    source.add(*range(10), partition=0, timestamp=5000)
    source.add(*range(10, 15), partition=1, timestamp=6000)
    write(load(subscribe=source.name), topic=target.name, includeTimestamp="true")
    place = ["partition", "offset", "value", "timestamp"]
    copy, origin = load(subscribe=target.name).select(place), load(subscribe=source.name).select(place)
    assert_df_equality(copy, origin, ignore_row_order=True)


def test_times_without_a_zone_are_those_of_the_session(
    spark: Any, new_topic: NewTopic, load: Load, write: Callable[..., None]
) -> None:
    topic = new_topic()
    frame = spark.range(1, numPartitions=1).selectExpr(
        "'v' value", "timestamp_ntz'2026-07-01 08:00:00' timestamp"
    )
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write(frame, topic=topic.name, includeTimestamp="true")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    sent = load(subscribe=topic.name).selectExpr("CAST(timestamp AS string)")  # in the session's zone
    assert sent.collect() == [("2026-07-01 12:00:00",)]


@pytest.mark.parametrize("mode", ["overwrite", "ignore", "errorifexists"])
def test_w12_modes_other_than_append_are_refused(
    spark: Any, new_topic: NewTopic, load: Load, write: Callable[..., None], mode: str
) -> None:
    topic = new_topic()
    with pytest.raises(AnalysisException) as caught:
        write(spark.range(1).selectExpr("'v' value"), mode, topic=topic.name)
    said = (
        "Save mode Overwrite not allowed for Kafka"
        if mode == "overwrite"
        else "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
    )
    assert said in str(caught.value)
    assert values(load, topic) == []


def test_w4_w5_and_w7_wrong_frames_and_options_fail_before_any_task(
    spark: Any, write: Callable[..., None]
) -> None:
    frame = spark.range(1).selectExpr("'v' value", "1 partition", "raise_error('a task ran') key")
    wrong = [
        (frame, {}, "topic option required when no 'topic' attribute is present"),
        (frame.drop("value"), {"topic": "t"}, "Required attribute 'value' not found"),
        (frame.withColumn("partition", lit("0")), {"topic": "t"}, "partition attribute unsupported type"),
        (frame, {"topic": "t", "kafka.value.serializer": "x"}, "'kafka.value.serializer' is not supported"),
    ]  # fmt: skip
    for given, options, said in wrong:
        with pytest.raises(AnalysisException, match=said):
            write(given, **options)


def test_w6_w11_and_a_failed_task_tells_why(
    spark: Any, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    frame = spark.range(1).selectExpr("'v' value")
    with pytest.raises(PythonException, match="topic nowhere: it does not exist"):
        write(frame, topic="nowhere", **{"kafka.max.block.ms": "300"})
    with pytest.raises(PythonException, match="KAFKA_NULL_TOPIC_IN_DATA"):
        write(frame.withColumn("topic", lit(None).cast("string")))


@pytest.fixture
def stream_to(spark: Any, server: EmbeddedBroker, tmp_path: Path) -> Callable[..., Any]:
    """``stream_to(frame, topic)``: write all there is, with the checkpoint of this test; the progress."""

    def run(frame: Any, topic: Topic, output_mode: str = "append") -> list[Any]:
        query = (
            frame.writeStream.format("kafkalog")
            .option("kafka.bootstrap.servers", server.bootstrap_servers)
            .option("topic", topic.name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode(output_mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)
        return list(query.recentProgress)

    return run


@pytest.fixture
def lines(spark: Any, tmp_path: Path) -> tuple[Any, Callable[..., None]]:
    """A stream of lines of text files, and what adds a file."""
    place = tmp_path / "lines"
    place.mkdir()
    numbers = iter(range(100))

    def add(*texts: str) -> None:
        file = place / f"{next(numbers)}.txt"
        file.write_text("\n".join(texts))

    return spark.readStream.text(str(place)), add


def test_w8_a_stream_continues_from_its_checkpoint_and_counts_what_it_wrote(
    lines: tuple[Any, Callable[..., None]], new_topic: NewTopic, load: Load, stream_to: Callable[..., Any]
) -> None:
    frame, add = lines
    topic = new_topic(partitions=2)
    add("a", "b", "c")
    progress = stream_to(frame, topic)
    assert [p.sink.numOutputRows for p in progress if p.numInputRows] == [3]
    add("d")
    progress = stream_to(frame, topic)
    assert [p.sink.numOutputRows for p in progress if p.numInputRows] == [1]
    assert values(load, topic) == ["a", "b", "c", "d"]


@pytest.mark.long("several Spark jobs")
def test_in_complete_mode_each_batch_is_the_whole_result(
    lines: tuple[Any, Callable[..., None]], new_topic: NewTopic, load: Load, stream_to: Callable[..., Any]
) -> None:
    frame, add = lines
    counts = frame.groupBy(col("value").alias("key")).count()
    counted = counts.select("key", concat_ws("=", "key", col("count").cast("string")).alias("value"))
    topic = new_topic()
    add("a", "a", "b")
    stream_to(counted, topic, "complete")
    assert values(load, topic) == ["a=2", "b=1"]
    add("b")
    stream_to(counted, topic, "complete")
    assert values(load, topic) == ["a=2", "a=2", "b=1", "b=2"]


def test_a_stream_with_a_wrong_column_fails_in_the_words_of_the_batch(
    lines: tuple[Any, Callable[..., None]], new_topic: NewTopic, stream_to: Callable[..., Any]
) -> None:
    frame, add = lines
    add("a")
    with pytest.raises(Exception, match="Required attribute 'value' not found"):
        stream_to(frame.select(col("value").alias("text")), new_topic())
