"""Two loads in a process that is killed in the middle of both; the demo starts it.

    python killed_load.py SERVERS OFFSETS DIRECTORY

When the kill comes, the load ``december`` has written its files and not its commit; and of the read
``mapper``, which leaves offsets as its tasks end (``commitOffsets=stage``), the second task is still being
written.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flight_events import DECEMBER_MS, TOPIC
from spark_session import spark_session

import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def main(servers: str, offsets: str, directory: str) -> None:
    # One core: the tasks run one after the other, so it is known which of them ended.
    spark = spark_session(master="local[1]")
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingTimestamp": DECEMBER_MS}
    with kafkalog.load(spark, name="december", offsets=offsets, **options) as load:
        load.write_parquet(output(directory, "december"))
        read = mapper_read(spark, servers, offsets)
        dying = read.mapInArrow(killing_in_the_second_task(os.getpid()), read.schema)
        dying.write.mode("append").parquet(output(directory, "mapper"))


def killing_in_the_second_task(
    driver: int,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that kills the process ``driver``."""

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and batch.column("partition")[0].as_py() == 1:
                os.kill(driver, signal.SIGKILL)
                time.sleep(60)  # what is left of Spark ends with its driver, and this with it
            yield batch

    return kill


def mapper_read(spark: SparkSession, servers: str, offsets: str) -> DataFrame:
    """A plain read, which commits by itself when the last of its tasks has read to the end."""
    return (
        spark.read.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .options(subscribe=TOPIC, startingTimestamp=DECEMBER_MS, columns="partition,offset,key,value")
        .options(loadName="mapper", offsetsPath=offsets, commitOffsets="stage")
        .load()
    )


def output(directory: str | Path, name: str) -> str:
    """Where the table of a load is."""
    return str(Path(directory) / f"{name}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
