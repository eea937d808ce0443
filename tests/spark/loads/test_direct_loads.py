"""Tables that tasks and Spark's writers write in turns: the same types, directories and rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import LoadError
from tests.support.datasource.spark_topics import Topic, record
from tests.support.loads.file_lake import Lake


@pytest.fixture
def lake(spark: Any, server: Any, new_topic: Callable[..., Topic], tmp_path: Path) -> Lake:
    return Lake(spark, server.bootstrap_servers, new_topic(prefix="direct", partitions=2), tmp_path)


def directories(table: Path) -> set[str]:
    """The directories with files, without those of loads and runs."""
    found = {str(file.parent.relative_to(table)) for file in table.rglob("part-*")}
    return {re.sub("load=[0-9]*/kl_run=[0-9a-f]*/?", "", name) for name in found}


def writers(table: Path) -> list[str]:
    """Who wrote each load's files."""
    made = sorted(
        (file.relative_to(table).parts[0], pq.read_metadata(file).created_by)
        for file in table.rglob("part-*")
    )
    return ["tasks" if maker.startswith("parquet-cpp") else "Spark" for _, maker in dict(made).items()]


def without_spark(table: Path) -> list[tuple[Any, ...]]:
    found = kafkalog.read_load(None, table).read_all()
    rows = found.select(["load", "key", "value", "timestamp", "headers"]).to_pylist()
    return sorted((*list(row.values())[:4], [(h["key"], h["value"]) for h in row["headers"]]) for row in rows)


def test_a_table_is_written_by_spark_and_by_tasks_in_turns(lake: Lake) -> None:
    for number in range(1, 4):
        lake.topic.add_records([record(b"%d" % number, key=None, timestamp=number, headers=(("h", None),))])
        with lake.load(includeHeaders=True) as load:
            load.write_parquet(lake.table, engine="tasks" if number % 2 else "spark")
    assert writers(lake.table) == ["tasks", "Spark", "tasks"]
    found = kafkalog.read_load(lake.spark, lake.table)
    source = lake.spark.read.format("kafkalog").option("kafka.bootstrap.servers", lake.servers)
    source = source.options(subscribe=lake.topic.name, includeHeaders=True).load()
    assert found.drop("load").schema.simpleString() == source.schema.simpleString()
    key = f.col("timestamp")
    assert found.drop("load").orderBy(key).collect() == source.orderBy(key).collect()
    assert without_spark(lake.table) == [
        (load, None, b"%d" % load, datetime.fromtimestamp(load / 1000, timezone.utc), [("h", None)])
        for load in range(1, 4)
    ]
    commit = kafkalog.compact(lake.spark, lake.table)
    assert commit is not None
    assert [row[0] for row in without_spark(lake.table)] == [1, 2, 3]
    assert (
        kafkalog.read_load(lake.spark, lake.table).drop("load").orderBy(key).collect()
        == source.orderBy(key).collect()
    )

    lake.topic.add(4)
    with pytest.raises(LoadError, match="since load 4 offset was bigint and is string"), lake.load() as load:
        load.write_parquet(
            lake.table,
            transform=lambda batch: pa.record_batch({"offset": pc.cast(batch["offset"], pa.string())}),
        )
    with (
        pytest.raises(LoadError, match=r"is partitioned by \[\], this one by \['partition'\]"),
        lake.load() as load,
    ):
        load.write_parquet(lake.table, partition_by="partition")


def test_both_name_directories_alike(lake: Lake) -> None:
    texts = [chr(code) for code in range(1, 128) if chr(code) != "/"] + [
        "a/b",
        "",
        "ä €",
        "007",
        "%41",
        "a=b",
    ]
    rows = [record(text.encode(), timestamp=number) for number, text in enumerate(texts)]
    lake.topic.add_records([*rows, record(None, timestamp=len(texts))])
    one, other = lake.root / "tasks", lake.root / "spark"
    with lake.load() as load:

        def named(batch: pa.RecordBatch) -> pa.RecordBatch:
            text = pc.cast(batch["value"], pa.string())
            odd = pc.equal(pc.bit_wise_and(batch["offset"], 1), 1)
            return pa.record_batch({"a {b}": text, "odd": odd, "time": batch["timestamp"]})

        load.write_parquet(one, transform=named, partition_by=["a {b}", "odd"])
        same = load.df.selectExpr("string(value) AS `a {b}`", "offset % 2 = 1 AS odd", "timestamp AS time")
        load.write_parquet(other, same, partition_by=["a {b}", "odd"])
    assert directories(one) == directories(other)
    assert len(directories(one)) > len(texts) - 5
    key = [f.col("time")]
    frames = [kafkalog.read_load(lake.spark, table).orderBy(*key) for table in (one, other)]
    assert frames[0].schema == frames[1].schema
    assert frames[0].collect() == frames[1].collect()


@pytest.mark.long("two tables by the hour")
def test_both_divide_time_alike(lake: Lake) -> None:
    hour = 3_600_000
    times = [-1, 0, 1, hour - 1, hour, 23 * hour, 24 * hour, 1_700_000_000_123, 86_399_999, -3_700_000]
    lake.topic.add_records([record(b"%d" % number, timestamp=time) for number, time in enumerate(times)])
    lake.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        with lake.load() as load:
            for table, engine in ((lake.root / "tasks", "tasks"), (lake.root / "spark", "spark")):
                load.write_parquet(table, partition_by_time="timestamp", grain="hour", engine=engine)
    finally:
        lake.spark.conf.unset("spark.sql.session.timeZone")
    assert directories(lake.root / "tasks") == directories(lake.root / "spark")
    assert len(directories(lake.root / "tasks")) == 7


def test_a_task_that_fails_in_spark_publishes_nothing(lake: Lake) -> None:
    lake.topic.add(0, 1, partition=0)
    lake.topic.add(2, 3, partition=1)

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and batch["partition"][0].as_py() == 1:
            raise ValueError("not these")
        return batch

    with pytest.raises(Exception, match="not these"), lake.load() as load:
        load.write_parquet(lake.table, transform=fails)
    assert lake.ledger.head() is None
    commit = lake.run()
    assert (commit.number, commit.records, commit.outputs[0].rows) == (1, 4, 4)
    lake.assert_published([(1, n) for n in range(4)])
