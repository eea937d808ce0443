"""Mode ``sql`` where Spark itself matters: tasks that write, and rows of a DataFrame in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import IncompleteLoad
from tests.support.datasource.spark_topics import Topic


@dataclass
class Warehouse:
    """A load of one topic into tables of SQLite."""

    spark: Any
    servers: str
    topic: Topic
    root: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.root}/warehouse.db"

    def load(self, name: str) -> Any:
        options: dict[str, Any] = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic.name}
        return kafkalog.load(self.spark, name=name, offsets=self.root / "offsets", minPartitions=4, **options)

    def query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.root / "warehouse.db")) as database:
            return database.execute(statement).fetchall()


@pytest.fixture
def warehouse(spark: Any, server: Any, new_topic: Callable[..., Topic], tmp_path: Path) -> Warehouse:
    """A topic with 0-9 in partition 0 and 10-14 in partition 1."""
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    return Warehouse(spark, server.bootstrap_servers, topic, tmp_path)


def test_each_task_writes_its_range_and_a_replay_writes_none(warehouse: Warehouse) -> None:
    factor = 2

    def doubled(batch: Any) -> Any:
        import pyarrow as pa

        values = [factor * int(value) for value in batch["value"].to_pylist()]
        return pa.record_batch({"n": pa.array(values, pa.int64())})

    with warehouse.load("tasks") as first:
        first.write_sql(warehouse.url, "numbers", transform=doubled)
        first.keep()
    with warehouse.load("tasks") as load:
        load.write_sql(warehouse.url, "numbers", transform=doubled)
    assert load.commit.records == 15
    assert warehouse.query("SELECT n FROM numbers ORDER BY n") == [(2 * n,) for n in range(15)]
    runs = warehouse.query("SELECT DISTINCT run FROM _kafkalog_offsets")
    assert len(runs) == 1, "what the first attempt wrote is not written again"
    assert kafkalog.audit_sql("tasks", str(warehouse.root / "offsets"), warehouse.url) == []


def counts(rows: Any) -> Any:
    return rows.groupBy("partition").agg(f.count("*").alias("n"), f.max("timestamp").alias("last"))


@pytest.mark.long("several Spark jobs")
def test_rows_of_a_query_are_one_transaction_with_all_offsets(warehouse: Warehouse) -> None:
    with warehouse.load("query") as load:
        with pytest.raises(IncompleteLoad, match="were not read in this run"):
            load.write_sql(warehouse.url, "other", df=warehouse.spark.range(3))
        assert warehouse.query("SELECT COUNT(*) FROM other") == [(0,)]
        load.write_sql(warehouse.url, "counts", df=counts(load.df))
        load.keep()
    rows = [(0, 10, "1970-01-01 00:00:01.000000", 1), (1, 5, "1970-01-01 00:00:01.000000", 1)]
    assert warehouse.query('SELECT * FROM counts ORDER BY "partition"') == rows
    with warehouse.load("query") as again:
        again.write_sql(warehouse.url, "counts", df=counts(again.df))
    assert again.commit.records == 15
    assert warehouse.query('SELECT * FROM counts ORDER BY "partition"') == rows
    assert kafkalog.audit_sql("query", str(warehouse.root / "offsets"), warehouse.url) == []
