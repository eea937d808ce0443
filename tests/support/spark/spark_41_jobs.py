"""What `tests/peers/test_spark_41.py` and `test_spark_40.py` have an older PySpark do; answers are JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import decoding
from tests.support.datasource.both_connectors import Row, read
from tests.support.datasource.stream_runs import StreamRuns
from tests.support.until import until


def version(spark: Any) -> list[str]:
    """Of what is imported, and of what runs."""
    return [pyspark.__version__, spark.version]


def batch(spark: Any, source: str, servers: str, options: dict[str, str]) -> list[list[str]]:
    """The rows of each task, as text."""
    return [list(map(_text, task)) for task in read(spark, source, servers, options).tasks]


def keyed(spark: Any, servers: str, options: dict[str, str]) -> list[str]:
    """Keys, values, partitions and offsets, in order."""
    frame = spark.read.format("kafkalog").option("kafka.bootstrap.servers", servers).options(**options).load()
    return sorted(repr(tuple(row)) for row in frame.collect())


def stream(
    spark: Any, source: str, servers: str, checkpoint: str, options: dict[str, str]
) -> list[list[str]]:
    """The rows of each batch of one run."""
    runs = StreamRuns(spark, source, servers, Path(checkpoint), options)
    return [list(map(_text, found.rows)) for found in runs.run()]


def write(spark: Any, source: str, servers: str, topic: str, count: int) -> None:
    """So many rows, numbered, in one task."""
    frame = spark.range(count).coalesce(1).selectExpr("cast(id as string) key", "concat('value ', id) value")
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    frame.write.format(source).options(**options).mode("append").save()


def write_stream(
    spark: Any, source: str, servers: str, checkpoint: str, options: dict[str, str], topic: str
) -> int:
    """What a stream of ours reads goes to another topic; how many rows it was."""
    told = {"kafka.bootstrap.servers": servers, **options}
    frame = spark.readStream.format("kafkalog").options(**told).load().select("key", "value")
    writer = frame.writeStream.format(source).option("kafka.bootstrap.servers", servers)
    query = (
        writer.option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return sum(each.numInputRows for each in query.recentProgress)


def load(spark: Any, servers: str, topic: str, root: str) -> list[int]:
    """Load what is new into Parquet; the number of the load and the rows of the table."""
    options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    with kafkalog.load(spark, name="old", offsets=f"{root}/offsets", **options) as job:
        job.write_parquet(f"{root}/table")
    return [job.number, kafkalog.read_load(spark, f"{root}/table").count()]


def table(spark: Any, servers: str, topic: str) -> list[int]:
    """Rows of a table over the topic, before and after another row is written."""
    options = f"'kafka.bootstrap.servers' '{servers}', subscribe '{topic}', topic '{topic}'"
    spark.sql(f"create table t_{topic.replace('-', '_')} using kafkalog options ({options})")
    name = f"t_{topic.replace('-', '_')}"
    counts = [spark.read.table(name).count()]
    spark.range(1).selectExpr("cast(id as string) key", "'new' value").write.format("kafkalog").options(
        **{"kafka.bootstrap.servers": servers, "topic": topic}
    ).mode("append").save()
    counts.append(spark.sql(f"select * from {name}").count())
    spark.sql(f"drop table {name}")
    return counts


def listened(spark: Any, servers: str, topic: str, checkpoint: str) -> int:
    """How many times the listener of lags was told of a stream."""
    lags: list[Any] = []
    listener = kafkalog.LagListener(lags.append)
    spark.streams.addListener(listener)
    runs = StreamRuns(
        spark, "kafkalog", servers, Path(checkpoint), {"subscribe": topic, "startingOffsets": "earliest"}
    )
    runs.run()
    until(lambda: lags)
    spark.streams.removeListener(listener)
    return len(lags)


def decode_avro(spark: Any, servers: str) -> None:
    decoding.avro("value", '{"type": "record", "name": "R", "fields": []}', framed=False)


def _text(row: Row) -> str:
    return repr(tuple(row))
