"""Topics as tables and views of SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.spark_topics import Topic
from tests.support.spark.frame_rows import assert_rows


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    made = new_topic(partitions=2)
    made.add("a", "b", "c")
    made.add("d", partition=1)
    return made


@pytest.fixture
def options(server: EmbeddedBroker, topic: Topic) -> str:
    return f"'kafka.bootstrap.servers' '{server.bootstrap_servers}', subscribe '{topic.name}'"


@pytest.fixture
def table(spark: Any, options: str) -> Iterator[str]:
    spark.sql(f"CREATE TABLE clicks USING kafkalog OPTIONS ({options}, topic 'none', includeHeaders 'true')")
    yield "clicks"
    spark.sql("DROP TABLE clicks")


VALUES = "SELECT partition, offset, CAST(value AS STRING) AS text FROM {}"
COLUMNS = "partition int, offset bigint, text string"
ROWS = [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, "d")]


def test_a_table_of_the_catalog_is_read_with_its_own_options(spark: Any, table: str, topic: Topic) -> None:
    assert spark.table(table).columns[-1] == "headers"
    assert_rows(spark.sql(VALUES.format(table)), COLUMNS, ROWS)
    topic.add("e")
    assert spark.sql(f"SELECT count(*) FROM {table}").first() == (5,)
    assert spark.read.table(table).where("partition = 1").count() == 1


def test_an_option_of_the_read_comes_before_the_tables(spark: Any, table: str, topic: Topic) -> None:
    start = topic.offsets(p0=2, p1=0)
    assert spark.read.option("startingOffsets", start).table(table).count() == 2


@pytest.mark.long("several Spark jobs")
def test_a_stream_of_a_table(spark: Any, table: str, tmp_path: Path) -> None:
    found: list[Any] = []
    query = (
        spark.readStream.option("startingOffsets", "earliest").table(table)
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination(150)
    assert sorted(bytes(row["value"]).decode() for row in found) == ["a", "b", "c", "d"]


@pytest.mark.long("several Spark jobs")
def test_rows_are_inserted_into_a_view(
    spark: Any, options: str, new_topic: Callable[..., Topic], load: Callable[..., Any]
) -> None:
    target = new_topic().name
    columns = "(key STRING, value STRING)"
    spark.sql(f"CREATE TEMPORARY VIEW target {columns} USING kafkalog OPTIONS ({options}, topic '{target}')")
    try:
        spark.sql("INSERT INTO target VALUES ('k', 'v'), (NULL, 'w')")
    finally:
        spark.catalog.dropTempView("target")
    read = load(subscribe=target).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    assert_rows(read, "key string, value string", [("k", "v"), (None, "w")])


def test_a_view_of_a_topic(spark: Any, options: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW seen USING kafkalog OPTIONS ({options})")
    try:
        assert_rows(spark.sql(VALUES.format("seen")), COLUMNS, ROWS)
    finally:
        spark.catalog.dropTempView("seen")


def test_a_table_with_a_wrong_option_is_not_made(spark: Any, options: str) -> None:
    with pytest.raises(Exception, match=r"Unknown option 'startingofset'\. Did you mean 'startingOffsets'"):
        spark.sql(f"CREATE TABLE wrong USING kafkalog OPTIONS ({options}, startingOfset 'earliest')")
    assert not spark.catalog.tableExists("wrong")
