"""Loads that die in their middle; the demo starts each in a process of its own.

    python killed_load.py before-commit|in-task SERVERS OFFSETS OUTPUT

``before-commit``: the Parquet files are written, the commit is not.
``in-task``: with ``commitOffsets=stage``, while the second task is still being written.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flight_events import DECEMBER_MS, TOPIC
from spark_session import spark_session

import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def before_commit(servers: str, offsets: str, path: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingTimestamp": DECEMBER_MS}
    with kafkalog.load(spark_session(), name="december", offsets=offsets, **options) as load:
        load.write_parquet(path)
        os.kill(os.getpid(), signal.SIGKILL)


def in_task(servers: str, offsets: str, path: str) -> None:
    driver = os.getpid()

    def die_in_the_second_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and batch.column("partition")[0].as_py() == 1:
                os.kill(driver, signal.SIGKILL)
                time.sleep(60)  # what is left of Spark ends with its driver, and this with it
            yield batch

    # One core: the tasks run one after the other, so it is known which of them ended.
    read = mapper_read(spark_session(master="local[1]"), servers, offsets)
    read.mapInArrow(die_in_the_second_task, read.schema).write.mode("append").parquet(path)


def mapper_read(spark: SparkSession, servers: str, offsets: str) -> DataFrame:
    """A plain read, which commits by itself when the last of its tasks has read to the end."""
    return (
        spark.read.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .options(subscribe=TOPIC, startingTimestamp=DECEMBER_MS, columns="partition,offset,key,value")
        .options(loadName="mapper", offsetsPath=offsets, commitOffsets="stage")
        .load()
    )


if __name__ == "__main__":
    point, *where = sys.argv[1:]
    {"before-commit": before_commit, "in-task": in_task}[point](*where)
