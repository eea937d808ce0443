"""Every kind of job with the same options, as a user with one cluster and one login runs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark_kafkalog as kafkalog
from tests.support.command_line import kafkalog as command
from tests.support.datasource.both_connectors import OURS

ROWS = 100


def write(spark: Any, servers: str, topic: str, options: Mapping[str, str]) -> None:
    """The numbers below `ROWS` as values, in two partitions."""
    frame = spark.range(ROWS).selectExpr("cast(id as string) value", "cast(id % 2 as int) partition")
    writer = frame.write.format(OURS).option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer.options(**options).mode("append").save()


def run_all(spark: Any, servers: str, topic: str, options: Mapping[str, str], directory: str | Path) -> None:
    """Sink, batch, stream, load and the commands; each must find what the sink has written."""
    directory = Path(directory)
    write(spark, servers, topic, options)
    source = {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}
    assert spark.read.format(OURS).options(**source).load().count() == ROWS

    stream = spark.readStream.format(OURS).options(**source, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(directory / "stream"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert spark.read.parquet(str(directory / "stream")).count() == ROWS

    with kafkalog.load(spark, name="secured", offsets=directory / "offsets", **source) as load:
        load.write_parquet(directory / "table")
    assert kafkalog.read_load(spark, directory / "table").count() == ROWS

    file = directory / "client.properties"
    file.write_text("".join(f"{name.removeprefix('kafka.')}={value}\n" for name, value in options.items()))
    ran = command("consume", topic, "--command-config", str(file), server=servers)
    assert sorted(map(int, ran.stdout.split())) == list(range(ROWS)), ran.stderr
