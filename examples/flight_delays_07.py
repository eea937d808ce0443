"""The first generation's way: flights through ZooKeeper, two brokers and the 0.7 wire into Spark.

Brokers have no master: each registers in ZooKeeper with the partitions it has, and the producer finds them
there. Spark asks ZooKeeper too, and reads one task for each broker and partition; where it ended stands in
the text files of Kafka's Hadoop mapper, and in the znodes where tools of that time look. December comes, and
the next load takes what is new; then the files are set back by hand, and a load begins where they say.
At last the same brokers on today's wire, where they are one cluster: each partition has one owner, and the
papers' producer and consumer, by ZooKeeper, share a topic with Spark, which asks one of the brokers.
Whatever is claimed is compared with what was counted while producing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flight_events import DECEMBER, JANUARY_TO_NOVEMBER, TOPIC, Source, send_flights
from flight_table import compare, print_delays
from spark_session import spark_session
from telling import arguments, console, say, say_commit, step, verdict

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKERS = (1, 2)
PARTITIONS_OF_A_BROKER = 2
SHARED = f"{TOPIC}-of-both"
GROUP = "flight-loads"
CARRIER = "get_json_object(string(value), '$.carrier')"
PLACE = ("broker", "partition", "offset", "innerIndex")
"""Messages of a compressed set have one offset."""


@dataclass
class Demo:
    """The session, where things are, and what was not as claimed so far."""

    spark: SparkSession
    zookeeper: str
    directory: Path
    different: list[str] = field(default_factory=list)

    @property
    def offsets(self) -> Path:
        return self.directory / "offsets"

    @property
    def topic(self) -> dict[str, str]:
        return {
            "protocol": "0.7",
            "zookeeper.connect": self.zookeeper,
            "subscribe": TOPIC,
            "includeBroker": "true",
        }

    def output(self, name: str) -> Path:
        return self.directory / f"{name}.parquet"

    def loaded(self, name: str) -> DataFrame:
        return kafkalog.read_load(self.spark, self.output(name))

    def compare(self, loaded: DataFrame, source: Source) -> None:
        self.different += compare(loaded, source, carrier=CARRIER, place=PLACE)


def main() -> int:
    options = arguments(__doc__)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flights-07-") as temporary, ExitStack() as running:
        with step("starting ZooKeeper (the server among PySpark's jars) and two brokers, each a process"):
            zookeeper = running.enter_context(zookeeper_in(Path(temporary)))
            brokers = [running.enter_context(broker_of(node, zookeeper)) for node in BROKERS]
        with ZooKeeperSession(zookeeper) as session:
            with step("producing the flights of January to November"):
                eleven_months = produce(zookeeper, JANUARY_TO_NOVEMBER)
                print_znodes(session, "/brokers")
            with step("starting Spark"):
                spark = spark_session()
            try:
                demo = Demo(spark, zookeeper, options.output or Path(temporary))
                run(demo, session, eleven_months)
                run_on_todays_wire(demo, session, f"127.0.0.1:{brokers[0].port_of('PLAINTEXT')}")
            finally:
                spark.stop()
    return verdict(demo.different, started)


def run(demo: Demo, session: ZooKeeperSession, eleven_months: Source) -> None:
    with step("load 1: everything so far, one task for each broker and partition"):
        load_what_is_new(demo)
        demo.compare(demo.loaded("flights"), eleven_months)
        print_offset_files(demo)
        print_znodes(session, "/consumers")
    with step("delays per carrier, from what was loaded"):
        print_delays(demo.loaded("flights"))
    with step("December arrives"):
        december = produce(demo.zookeeper, DECEMBER)
    with step("load 2: begins where load 1 ended"):
        before = mapper_files(demo)
        load_what_is_new(demo)
        loaded = demo.loaded("flights")
        demo.compare(loaded.where("load = 2"), december)
        demo.compare(loaded, eleven_months + december)
        print_offset_files(demo)
        print_znodes(session, "/consumers")
    with step("December once more: the mapper's files, with the offsets set back by hand, begin a new load"):
        set_back = demo.directory / "set-back"
        set_back.mkdir(exist_ok=True)
        for name, line in before.items():
            (set_back / name).write_text(line)
        options = {**demo.topic, "startingOffsets": f"file:{set_back}"}
        with kafkalog.load(demo.spark, name="again", offsets=demo.offsets, **options) as load:
            load.write_parquet(demo.output("again"))
        say_commit(load.commit)
        demo.compare(demo.loaded("again"), december)


def run_on_todays_wire(demo: Demo, session: ZooKeeperSession, one_broker: str) -> None:
    with step("today's wire: a topic of both brokers, and December once more"):
        count = len(BROKERS) * PARTITIONS_OF_A_BROKER
        kafkalog.create_topics(one_broker, [kafkalog.NewTopic(SHARED, count)])
        december = produce(demo.zookeeper, DECEMBER, topic=SHARED, protocol="0.8")
        print_znodes(session, f"/kafka/brokers/topics/{SHARED}")
    with step("a group of the papers' consumer reads it, through ZooKeeper"):
        demo.different += compare_read(demo.zookeeper, december)
    with step("Spark loads it, and is told of one broker only"):
        options = {"kafka.bootstrap.servers": one_broker, "subscribe": SHARED}
        with kafkalog.load(demo.spark, name="today", offsets=demo.offsets, **options) as load:
            load.write_parquet(demo.output("today"))
        say_commit(load.commit)
        demo.different += compare(demo.loaded("today"), december)


def compare_read(zookeeper: str, sent: Source) -> list[str]:
    """Read the shared topic in a consumer group; what is different from what was sent."""
    settings = {
        "zookeeper.connect": zookeeper, "protocol": "0.8", "groupid": GROUP, "consumer.timeout.ms": 3000,
    }  # fmt: skip
    read = Source()
    with kafkalog.ConsumerConnector(settings) as connector:
        (stream,) = connector.create_message_streams({SHARED: 1})[SHARED]
        while read.events < sent.events:
            try:
                message, _ = next(stream)
            except kafkalog.ConsumerTimeout:
                break
            read.add(json.loads(message)["carrier"], bytes(message))
    same = read == sent
    told = "the same" if same else "[bold red]DIFFERENT[/]"
    say(f"{sent.events:,} sent, {read.events:,} read; events, checksums, events per carrier: {told}")
    return [] if same else ["what the group read on today's wire"]


def load_what_is_new(demo: Demo) -> None:
    """All that a pipeline has to run, every time; the group is for those who look into ZooKeeper."""
    options = {**demo.topic, "kafka.group.id": GROUP, "offsetStore": "zookeeper"}
    with kafkalog.load(demo.spark, name="flights", offsets=demo.offsets, **options) as load:
        load.write_parquet(demo.output("flights"))
    say_commit(load.commit)


def produce(zookeeper: str, months: range, *, topic: str = TOPIC, protocol: str = "0.7") -> Source:
    """Send flights by the first generation's producer; returns when the brokers have taken all of them."""
    settings = {
        "zk.connect": zookeeper, "protocol": protocol, "producer.type": "async", "compression.codec": 1,
        "batch.size": 1000, "queue.enqueueTimeout.ms": -1,
    }  # fmt: skip
    with kafkalog.ClassicProducer(settings) as producer:

        def send(carrier: str, value: bytes, _scheduled_ms: int) -> None:
            producer.send(kafkalog.ProducerData(topic, [value], key=carrier))

        source = send_flights(send, months, console)
        say(f"ZooKeeper told the producer of brokers {producer.brokers}")
    say(f"{source.events:,} events sent, in gzip sets of up to 1,000")
    return source


@contextmanager
def zookeeper_in(directory: Path) -> Iterator[str]:
    """A ZooKeeper server; what to give as ``zookeeper.connect``."""
    config = ZooKeeperServerConfig(data_dir=str(directory / "zookeeper"), client_port=0)
    with ZooKeeperServer(config, log=directory / "zookeeper.log") as server:
        say(f"ZooKeeper at {server.connect} (process {server.pid})")
        yield server.connect


def broker_of(node: int, zookeeper: str) -> kafkalog_broker.EmbeddedBroker:
    """A broker of both wires that registers in ZooKeeper; what it takes is on disk, and so read, at once."""
    started = kafkalog_broker.start_broker(
        {
            "listeners": "KAFKA07://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", "node.id": node,
            "zookeeper.connect": zookeeper, "num.partitions": PARTITIONS_OF_A_BROKER, "log.flush.interval": 1,
        }
    )  # fmt: skip
    say(f"broker {node} at {started.bootstrap_servers} (process {started.pid})")
    return started


def mapper_files(demo: Demo) -> dict[str, str]:
    """The files that a load leaves in the form of Kafka's Hadoop mapper, by name."""
    return {file.name: file.read_text() for file in sorted((demo.offsets / "flights" / "offsets").iterdir())}


def print_offset_files(demo: Demo) -> None:
    say("the mapper's files: address, topic, partition, next offset in bytes")
    for name, line in mapper_files(demo).items():
        say(f"  {name}: {line.rstrip()}")


def print_znodes(session: ZooKeeperSession, path: str) -> None:
    """Print the nodes below a path that have a value."""
    for child in session.children(path):
        node = session.read(f"{path}/{child}")
        if node is not None and node.data:
            say(f"{path}/{child} = {node.data.decode()}")
        print_znodes(session, f"{path}/{child}")


if __name__ == "__main__":
    sys.exit(main())
