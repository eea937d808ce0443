"""The main job, end to end: real events into the bundled broker, out of it with loads that resume.

Every flight that left New York's airports in 2013 becomes a message. Eleven months are loaded with Spark into
Parquet; December arrives, and the next load takes exactly what is new. Then a load is killed in its middle,
and the next one is complete and without a duplicate; and the same once more the way of Kafka's Hadoop mapper.
Whatever is claimed is compared with what was counted while producing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flight_events import DECEMBER_MS, PARTITIONS, TOPIC, Source, produce
from killed_load import mapper_read, output
from rich.console import Console
from rich.table import Table
from spark_session import spark_session

import broker
import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT = "carrier string, origin string, dest string, dep_delay int, arr_delay int, time_hour string"
KILLED_LOAD = Path(__file__).with_name("killed_load.py")

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Demo:
    """The session, where things are, and what was not as claimed so far."""

    spark: SparkSession
    servers: str
    directory: Path
    different: list[str] = field(default_factory=list)

    @property
    def offsets(self) -> str:
        return str(self.directory / "offsets")

    @property
    def topic(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.servers, "subscribe": TOPIC}

    def output(self, name: str) -> str:
        return output(self.directory, name)


def main() -> int:
    options = arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flights-") as temporary:
        directory = options.output or Path(temporary)
        with step("starting the broker, in a process of its own"):
            server = broker.start_broker()
        with server:
            say(f"listening on {server.bootstrap_servers} (process {server.pid})")
            with step("producing the flights of January to November"):
                kafkalog.create_topics(
                    server.bootstrap_servers, [kafkalog.NewTopic(TOPIC, partitions=PARTITIONS)]
                )
                eleven_months = produce(server.bootstrap_servers, december=False, console=console)
                say(f"{eleven_months.events:,} events acknowledged")
            with step("starting Spark"):
                spark = spark_session()
            try:
                demo = Demo(spark, server.bootstrap_servers, directory)
                run(demo, eleven_months)
            finally:
                spark.stop()
    if demo.different:
        say(f"[bold red]not as claimed: {', '.join(demo.different)}[/]")
        return 1
    say(f"everything as claimed, in {time.monotonic() - started:.0f} s")
    return 0


def run(demo: Demo, eleven_months: Source) -> None:
    with step("load 1: everything so far, into Parquet"):
        load_what_is_new(demo)
        compare(demo, kafkalog.read_load(demo.spark, demo.output("flights")), eleven_months)
    with step("delays per carrier, from what was loaded"):
        print_delays(kafkalog.read_load(demo.spark, demo.output("flights")))
    with step("December arrives"):
        december = produce(demo.servers, december=True, console=console)
        say(f"{december.events:,} events acknowledged")
    with step("load 2: begins where load 1 ended"):
        load_what_is_new(demo)
        loaded = kafkalog.read_load(demo.spark, demo.output("flights"))
        compare(demo, loaded.where("load = 2"), december)
        compare(demo, loaded, eleven_months + december)
    with step("two loads of December, in a process that is killed in the middle of both"):
        kill_two_loads(demo)
    with step("killed before its commit: the next load finds the plan, and replays it"):
        options = {**demo.topic, "startingTimestamp": DECEMBER_MS}
        with kafkalog.load(demo.spark, name="december", offsets=demo.offsets, **options) as load:
            load.write_parquet(demo.output("december"))
        say_commit(load.commit)
        compare(demo, kafkalog.read_load(demo.spark, demo.output("december")), december)
    with step("killed in a task, the Hadoop mapper's way: the next read finds the plan, and replays it"):
        read = mapper_read(demo.spark, demo.servers, demo.offsets)
        read.write.mode("append").parquet(demo.output("mapper"))
        say_commit(kafkalog.Ledger.at(demo.offsets, "mapper").head())
        compare(demo, demo.spark.read.parquet(demo.output("mapper")), december)


def load_what_is_new(demo: Demo) -> None:
    """All that a pipeline has to run, every time."""
    with kafkalog.load(demo.spark, name="flights", offsets=demo.offsets, **demo.topic) as load:
        load.write_parquet(demo.output("flights"))
    say_commit(load.commit)


def kill_two_loads(demo: Demo) -> None:
    """One of mode dir, and one in which each task leaves its offsets when it has read to its end."""
    child = subprocess.run(
        [sys.executable, str(KILLED_LOAD), demo.servers, demo.offsets, str(demo.directory)],
        check=False,
        stderr=subprocess.DEVNULL,  # what is left of Spark complains that its driver is gone
    )
    say(f"the process ended by signal {-child.returncode}")
    for name in ("december", "mapper"):
        ledger = kafkalog.Ledger.at(demo.offsets, name)
        plan = ledger.pending()
        left = sum(ledger.receipt(plan, task) is not None for task in plan.ranges)
        files = len(list(Path(demo.output(name)).glob("**/part-*.parquet")))
        say(
            f"{name}: {left} of {len(plan.ranges)} tasks left a receipt, Parquet files: {files}, "
            f"commits: {len(ledger.history())}"
        )


def print_delays(loaded: DataFrame) -> None:
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT)
    delays = (
        loaded.select(event.alias("event"))
        .groupBy("event.carrier")
        .agg(
            f.count("*").alias("flights"),
            f.avg("event.dep_delay").alias("departure"),
            f.avg("event.arr_delay").alias("arrival"),
            f.avg((f.col("event.arr_delay") > 15).cast("int")).alias("late"),
            f.avg(f.col("event.arr_delay").isNull().cast("int")).alias("never"),
        )
        .orderBy(f.desc("arrival"))
    )
    table = Table("carrier", title="New York departures, January to November 2013: delays per carrier")
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


def compare(demo: Demo, loaded: DataFrame, source: Source) -> None:
    """Hold what Spark has against what was sent, and remember what is different."""
    from pyspark.sql import functions as f

    per_carrier = loaded.groupBy(f.col("key").cast("string").alias("carrier")).agg(
        f.count("*").alias("n"),
        f.sum(f.crc32("value")).alias("checksum"),
        f.count_distinct("partition", "offset").alias("places"),
    )
    rows = per_carrier.collect()
    events = sum(row.n for row in rows)
    compared = {
        "events": (source.events, events),
        # A key has one partition: so no place is counted under two carriers.
        "distinct (partition, offset)": (source.events, sum(row.places for row in rows)),
        "sum of CRC-32 of the values": (source.checksum, sum(row.checksum for row in rows)),
        "events per carrier": (dict(source.per_carrier), {row.carrier: row.n for row in rows}),
    }
    different = [what for what, (sent, got) in compared.items() if sent != got]
    demo.different += different
    say(
        f"{source.events:,} sent, {events:,} loaded; {', '.join(compared)}: "
        + (f"[bold red]DIFFERENT: {', '.join(different)}[/]" if different else "the same")
    )


def say_commit(commit: kafkalog.Commit) -> None:
    say(f"commit {commit.number}: {commit.records:,} events")


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
        "--output", type=Path, help="directory for offsets and Parquet files; kept (default: a temporary one)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
