"""What users do with this package and a Spark session, for `SparkProcess.call`: the same wherever Spark runs.

Each takes and returns what JSON can hold. Rows are ``[partition, offset, value]``, in the log's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import decoding
from tests.support.until import until

Options = dict[str, str]
SECONDS = 150


def kind(spark: Any) -> str:
    """The module of the session's class."""
    return type(spark).__module__


def read(spark: Any, *, options: Options) -> dict[str, Any]:
    """A batch: its columns, its rows, how many tasks had any."""
    frame = spark.read.format("kafkalog").options(**options).load()
    chosen = frame.selectExpr("partition", "offset", "cast(value AS string) value", "spark_partition_id()")
    rows = sorted([list(row) for row in chosen.collect()], key=lambda row: row[:2])
    tasks = len({row.pop() for row in rows})
    return {"columns": frame.columns, "rows": rows, "tasks": tasks}


def commit_on_success(spark: Any) -> dict[str, str]:
    return kafkalog.commit_on_success(spark)


def explained(spark: Any, *, options: Options) -> None:
    """Print a batch's plans, to the log."""
    spark.read.format("kafkalog").options(**options).load().explain(extended=True)


def full_rows(spark: Any, *, options: Options) -> list[list[Any]]:
    """All columns but the topic, as text and numbers."""
    frame = spark.read.format("kafkalog").options(**options, includeHeaders="true").load()
    whole = frame.selectExpr(
        "cast(key AS string) key", "cast(value AS string) value", "partition", "offset",
        "unix_millis(timestamp) timestamp", "timestampType",
        "transform(headers, h -> concat(h.key, '=', cast(h.value AS string))) headers",
    )  # fmt: skip
    return sorted([list(row) for row in whole.collect()], key=lambda row: row[2:4])


def executors(spark: Any, *, options: Options) -> list[list[int]]:
    """For each row of a batch: process id of the executor, number of the task, partition, offset."""
    frame = spark.read.format("kafkalog").options(**options).load()
    return [list(row) for row in frame.mapInArrow(_signed, _SIGNED).collect()]


def load(spark: Any, *, options: Options, name: str, offsets: str, path: str) -> dict[str, Any]:
    """One load into files; ``[load, partition, offset, executor]`` of each row that is published."""
    with kafkalog.load(spark, name=name, offsets=offsets, **options) as one:  # type: ignore[arg-type]
        one.write_parquet(path, one.df.mapInArrow(_signed, _SIGNED))
    published = kafkalog.read_load(spark, path).select("load", "partition", "offset", "executor")
    return {
        "records": one.commit.records if one.commit else 0,
        "rows": sorted(list(row) for row in published.collect()),
    }


def compact(spark: Any, *, path: str) -> int:
    """Put the files of loads together; the number of the commit."""
    commit = kafkalog.compact(spark, path)
    return commit.number if commit else 0


def load_numbers(spark: Any, *, options: Options, name: str, offsets: str, path: str) -> dict[str, Any]:
    """One load of values that are numbers; those that are none become dead letters."""
    with kafkalog.load(spark, name=name, offsets=offsets, **options) as one:  # type: ignore[arg-type]
        tried = one.df.selectExpr("*", "try_cast(cast(value AS string) AS int) n")
        numbers = tried.selectExpr("*", "if(n IS NULL, concat('no number at ', offset), null) reason")
        one.write_parquet(path, one.dead_letters(numbers, max_dead=1).select("n"))
    dead = kafkalog.read_dead(spark, name, offsets=offsets).selectExpr("cast(value AS string)", "reason")
    return {
        "numbers": sorted(row.n for row in kafkalog.read_load(spark, path).collect()),
        "dead": [list(row) for row in dead.collect()],
    }


def audited(spark: Any, *, name: str, offsets: str) -> list[list[int]]:
    """Of each load and partition the load, the partition, start, end and records."""
    rows = kafkalog.audit(spark, name, offsets=offsets).select("load", "partition", "start", "end", "records")
    return sorted(list(row) for row in rows.collect())


def load_sql(spark: Any, *, options: Options, name: str, offsets: str, url: str, table: str) -> int:
    """One load into a database, range by range; how many records were read."""
    with kafkalog.load(spark, name=name, offsets=offsets, **options) as one:  # type: ignore[arg-type]
        one.write_sql(url, table)
    return one.commit.records if one.commit else 0


def stream(
    spark: Any, *, options: Options, target: Options, checkpoint: str, name: str, group: str | None = None
) -> dict[str, Any]:
    """A stream into a topic until nothing is left, with a listener that tells its group and its lag.

    Returns the rows of each batch, and the most offsets behind after each. ``name`` is this run's alone.
    """
    seen: list[int] = []
    commit = None if group is None else {**options, "kafka.group.id": group}
    listener = kafkalog.LagListener(
        lambda lag: seen.append(lag.max_offsets_behind), commit=commit, query=name
    )
    # It is not removed: through Connect that waits for ever if one more event comes meanwhile.
    spark.streams.addListener(listener)
    frame = spark.readStream.format("kafkalog").options(**options).load().select("key", "value")
    query = (
        frame.writeStream.format("kafkalog").options(**target).queryName(name)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(SECONDS)
    counts = [progress.numInputRows for progress in query.recentProgress]
    until(lambda: len(seen) >= len(counts))
    return {"batches": counts, "behind": seen}


def write(spark: Any, *, target: Options, count: int) -> None:
    """The numbers below ``count`` as values, written by two tasks."""
    frame = spark.range(0, count, 1, 2).selectExpr("cast(id AS string) value")
    frame.write.format("kafkalog").options(**target).mode("append").save()


def decoded(spark: Any, *, options: Options, avro: str) -> list[list[Any]]:
    """Of each record what Avro makes of its key and JSON of its value, an ``n`` each, and the reasons."""
    frame = spark.read.format("kafkalog").options(**options).load()
    key, value = decoding.avro("key", avro, framed=False), decoding.json("value", "n INT")
    both = frame.select("offset", key.alias("a"), value.alias("j"))
    found = both.selectExpr("offset", "a.value.n an", "a.reason ar", "j.value.n jn", "j.reason jr")
    return sorted([list(row) for row in found.collect()], key=lambda row: row[0])


def sql(spark: Any, *, statements: Sequence[str]) -> list[list[Any]]:
    """The statements, one after the other; the rows of the last."""
    for statement in statements:
        found = spark.sql(statement)
    return [list(row) for row in found.collect()]


def application(spark: Any) -> str:
    """Its id, by which a local cluster names its directory."""
    return str(spark.conf.get("spark.app.id"))


_SIGNED = "executor bigint, task int, partition int, offset bigint"


def _signed(batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: where each row is, and who has read it."""
    import os

    import psutil
    import pyarrow as pa
    from pyspark import TaskContext

    # A worker is forked by its daemon, and that is the executor's child.
    executor = psutil.Process(os.getppid()).ppid()
    context = TaskContext.get()
    task = context.partitionId() if context else -1
    for batch in batches:
        who = [pa.array([n] * batch.num_rows, t) for n, t in ((executor, pa.int64()), (task, pa.int32()))]
        yield pa.RecordBatch.from_arrays(
            [*who, batch.column("partition"), batch.column("offset")],
            names=["executor", "task", "partition", "offset"],
        )
