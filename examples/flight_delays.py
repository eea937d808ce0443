"""The main job, end to end: real events into the bundled broker, out of it with loads that resume.

Every flight that left New York's airports in 2013 becomes a message. Eleven months are loaded with Spark into
Parquet; December arrives, and the next load takes exactly what is new. Then a load is killed in its middle,
and the next one is complete and without a duplicate; and the same once more the way of Kafka's Hadoop mapper.
Whatever is claimed is compared with what was counted while producing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flight_events import DECEMBER_MS, PARTITIONS, TOPIC, Source, produce
from flight_table import compare, print_delays
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
    return verdict(demo.different, started)


def run(demo: Demo, eleven_months: Source) -> None:
    with step("load 1: everything so far, into Parquet"):
        load_what_is_new(demo)
        demo.compare(kafkalog.read_load(demo.spark, demo.output("flights")), eleven_months)
    with step("delays per carrier, from what was loaded"):
        print_delays(kafkalog.read_load(demo.spark, demo.output("flights")))
    with step("December arrives"):
        december = produce(demo.servers, december=True, console=console)
        say(f"{december.events:,} events acknowledged")
    with step("load 2: begins where load 1 ended"):
        load_what_is_new(demo)
        loaded = kafkalog.read_load(demo.spark, demo.output("flights"))
        demo.compare(loaded.where("load = 2"), december)
        demo.compare(loaded, eleven_months + december)
    with step("two loads of December, in a process that is killed in the middle of both"):
        kill_two_loads(demo)
    with step("killed before its commit: the next load finds the plan, and replays it"):
        options = {**demo.topic, "startingTimestamp": DECEMBER_MS}
        with kafkalog.load(demo.spark, name="december", offsets=demo.offsets, **options) as load:
            load.write_parquet(demo.output("december"))
        say_commit(load.commit)
        demo.compare(kafkalog.read_load(demo.spark, demo.output("december")), december)
    with step("killed in a task, the Hadoop mapper's way: the next read finds the plan, and replays it"):
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
