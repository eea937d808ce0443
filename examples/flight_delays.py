"""The main job, end to end: real events into the bundled broker, out of it with loads that resume.

Every flight that left New York's airports in 2013 becomes a message. The first ones are looked at without
Spark. Eleven months are loaded with Spark into Parquet; December arrives, and the next load takes exactly
what is new. Then a load is killed in its middle, and the next one is complete and without a duplicate; and so
is a plain read whose tasks keep their offsets, as those of Kafka's Hadoop mapper did. Whatever is claimed is
compared with what was counted while producing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flight_events import (
    DECEMBER,
    DECEMBER_MS,
    FEBRUARY_TO_NOVEMBER,
    JANUARY,
    PARTITIONS,
    TOPIC,
    Source,
    produce,
)
from flight_table import compare, print_delays, print_first
from killed_load import mapper_read, output
from spark_session import spark_session
from telling import arguments, console, say, say_commit, step, verdict

import kafkalog_broker
import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KILLED_LOAD = Path(__file__).with_name("killed_load.py")


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

    def compare(self, loaded: DataFrame, source: Source) -> None:
        self.different += compare(loaded, source)


def main() -> int:
    options = arguments(__doc__)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flights-") as temporary:
        directory = options.output or Path(temporary)
        with step("starting the broker, in a process of its own"):
            server = kafkalog_broker.start_broker()
        with server:
            say(f"listening on {server.bootstrap_servers} (process {server.pid})")
            servers = server.bootstrap_servers
            with step("producing the flights of January, each one a message"):
                kafkalog.create_topics(servers, [kafkalog.NewTopic(TOPIC, partitions=PARTITIONS)])
                january = produce(servers, JANUARY, console)
                say(f"{january.events:,} events acknowledged")
            with step("a first look, as Arrow batches: no Spark yet"):
                batches = kafkalog.read_arrow(servers, TOPIC)
                print_first(value for batch in batches for value in batch.column("value").to_pylist())
            with step("producing the flights of February to November"):
                rest = produce(servers, FEBRUARY_TO_NOVEMBER, console)
                say(f"{rest.events:,} events acknowledged")
            with step("starting Spark", in_spark=True):
                spark = spark_session()
            try:
                demo = Demo(spark, servers, directory)
                run(demo, january + rest)
            finally:
                spark.stop()
    code = verdict(demo.different, started)
    say_what_next(options.output)
    return code


def say_what_next(output: Path | None) -> None:
    where = (
        f"Files and offsets are in {output}." if output else "--output DIR keeps the files and the offsets."
    )
    say(f"{where} To go on:")
    for command, what in (
        ("make notebooks", "executes notebooks/; begin with 01_quickstart.ipynb"),
        (".venv/bin/kafkalog-broker start", "a broker at 127.0.0.1:9092"),
        (".venv/bin/kafkalog top", "what happens there; kafkalog dashboard shows it in a browser"),
    ):
        say(f"  [bold]{command:<34}[/]{what}")


def run(demo: Demo, eleven_months: Source) -> None:
    with step("load 1: everything so far, into Parquet", in_spark=True):
        load_what_is_new(demo)
        demo.compare(kafkalog.read_load(demo.spark, demo.output("flights")), eleven_months)
    with step("delays per carrier, from what was loaded", in_spark=True):
        print_delays(kafkalog.read_load(demo.spark, demo.output("flights")))
    with step("December arrives"):
        december = produce(demo.servers, DECEMBER, console)
        say(f"{december.events:,} events acknowledged")
    with step("load 2: begins where load 1 ended", in_spark=True):
        load_what_is_new(demo)
        loaded = kafkalog.read_load(demo.spark, demo.output("flights"))
        demo.compare(loaded.where("load = 2"), december)
        demo.compare(loaded, eleven_months + december)
    with step(
        "a load and a read of December, in a process that is killed in the middle of both", in_spark=True
    ):
        kill_two_loads(demo)
    with step("the load was killed before its commit: the next one replays its plan", in_spark=True):
        options = {**demo.topic, "startingTimestamp": DECEMBER_MS}
        with kafkalog.load(demo.spark, name="december", offsets=demo.offsets, **options) as load:
            load.write_parquet(demo.output("december"))
        say_commit(load.commit)
        demo.compare(kafkalog.read_load(demo.spark, demo.output("december")), december)
    with step(
        "the read, whose tasks keep their offsets, was killed in one: the plan is replayed", in_spark=True
    ):
        read = mapper_read(demo.spark, demo.servers, demo.offsets)
        read.write.mode("append").parquet(demo.output("mapper"))
        say_commit(kafkalog.Ledger.at(demo.offsets, "mapper").head())
        demo.compare(demo.spark.read.parquet(demo.output("mapper")), december)


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


if __name__ == "__main__":
    sys.exit(main())
