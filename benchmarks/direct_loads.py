"""What do loads cost whose tasks write, without Spark: beside their read and their write alone, and by place?

Topics have two partitions, and batches of 64 KiB of random hexadecimal digits; two tasks of each load run at
once, in processes that the load starts. Files are compressed with snappy and forced to disk. The read alone
is a load whose function leaves no row; the write alone gives the writer as many ready-made batches; what
starting processes takes is in each of them, measured by tasks that do nothing, and counted once.

Delta, Iceberg and S3 are measured in turn with Parquet on the disk. S3 is moto's server: the peer is obstore,
which uploads the files of such a load to it, two at a time.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import write_deltalake
from obstore.store import S3Store

import pyspark_kafkalog as kafkalog
from benchmarks.harness import LIMIT, Row, compare, cost, interleave, shown
from benchmarks.raw_client import RawClient
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.engines.engine import Tell
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine
from pyspark_kafkalog.loads.writers.parquet_files import Layout, ParquetFiles
from pyspark_kafkalog.types import NewRecord
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server

PARTITIONS = 2
BATCH_BYTES = 64 << 10
SIZES = {100: 20_000_000, 1000: 3_000_000}
PLACED = 8_000_000
"""Records of 100 B for the comparison of places."""
OF_A_PROGRAM = 2_000_000
CONSUMED = 500_000  # records in a commit of that program
STARTED = 1_000_000
MEMORY = {100: 4_000_000, 1000: 1_000_000, 1_000_000: 600}
SUM_GOAL = 0.85
PLACE_GOAL = 0.9
STORE_GOAL = 0.7
START_LIMIT_S = 3.0
MEMORY_LIMIT_MIB = 512


def run(rounds: int = 5) -> list[Row]:
    """About ten minutes."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(start_broker({"log.retention.ms": -1, "message.max.bytes": 4 << 20}))
        loads = Loads(broker, directory)
        rows: list[Row] = []
        for value_bytes, count in SIZES.items():
            rows += shown([loads.against_its_parts(value_bytes, count, min(rounds, 3))])
        rows += shown(loads.places(rounds))
        rows += shown([loads.against_a_consumer(min(rounds, 3))])
        rows += shown([loads.store(min(rounds, 3))])
        rows += shown([loads.start(rounds)])
        return rows + shown([loads.memory(value_bytes, count) for value_bytes, count in MEMORY.items()])


class Loads:
    """Loads of topics of one broker; each has a ledger and a table of its own."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self._broker, self._directory = broker, directory
        self._topics: dict[tuple[int, int], str] = {}

    def against_its_parts(self, value_bytes: int, count: int, rounds: int) -> Row:
        topic = self.topic(value_bytes, count)
        contestants: dict[str, Callable[[], object]] = {
            "load": partial(self.parquet, topic),
            "read": partial(self.parquet, topic, transform=_none),
            "write": partial(self._write_alone, value_bytes, count),
            "start": lambda: LocalEngine(PARTITIONS).run(_nothing, PARTITIONS),
        }
        took = {name: one.median for name, one in interleave(contestants, rounds).items()}
        both = took["read"] + took["write"] - took["start"]
        question = (
            f"load of {count / 1e6:g} M x {value_bytes} B to Parquet, against its read and its write alone"
        )
        note = "peer: the sum of " + ", ".join(f"{name} {took[name]:.2f} s" for name in ("read", "write"))
        return cost(question, took["load"], both, "s", SUM_GOAL, note)

    def places(self, rounds: int) -> list[Row]:
        topic = self.topic(100, PLACED)
        contestants: dict[str, Callable[[], object]] = {
            "Parquet": partial(self.parquet, topic),
            "Delta": partial(self.delta, topic),
            "Iceberg": partial(self.iceberg, topic),
        }
        took = interleave(contestants, rounds, PLACED)
        what = f"load of {PLACED / 1e6:g} M x 100 B to"
        return [
            compare(f"{what} {name}", took[name], took["Parquet"], "Mrows/s", PLACE_GOAL)
            for name in ("Delta", "Iceberg")
        ]

    def against_a_consumer(self, rounds: int) -> Row:
        """What a program of one's own does, without offsets: for information."""
        topic = self.topic(100, OF_A_PROGRAM)
        contestants: dict[str, Callable[[], object]] = {
            "load": partial(self.delta, topic),
            "confluent-kafka and deltalake's writer": partial(self._consumed, topic),
        }
        question = f"load of {OF_A_PROGRAM / 1e6:g} M x 100 B to Delta"
        return compare(question, *interleave(contestants, rounds, OF_A_PROGRAM).values(), "Mrows/s")

    def store(self, rounds: int) -> Row:
        topic = self.topic(100, PLACED)
        files = self.parquet(topic)
        with s3_server() as port:
            where = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
            with mock.patch.dict("os.environ", where):
                client = S3Store(BUCKET, client_options={"allow_http": True})
                took = interleave(
                    {
                        "ours": lambda: self.parquet(topic, f"s3://{BUCKET}/{uuid.uuid4().hex}"),
                        "obstore": lambda: _upload(client, files),
                    },
                    rounds,
                    sum(file.stat().st_size for file in files),
                )
        question = f"load of {PLACED / 1e6:g} M x 100 B to S3, against the upload of its files alone"
        return compare(question, took["ours"], took["obstore"], "MB/s", STORE_GOAL)

    def start(self, rounds: int) -> Row:
        topic = self.topic(100, STARTED)
        took = interleave({"process": lambda: self._in_a_process(topic)}, rounds)["process"]
        question = f"{STARTED / 1e6:g} M x 100 B, from the start of a process to the published table"
        return cost(question, took.median, START_LIMIT_S, "s", 1.0)

    def memory(self, value_bytes: int, count: int) -> Row:
        mib = json.loads(self._in_a_process(self.topic(value_bytes, count))) / 1024
        question = f"most memory of a task, {count:,} records of {value_bytes:,} B"
        return cost(question, mib, MEMORY_LIMIT_MIB, "MiB", 1.0, LIMIT)

    def topic(self, value_bytes: int, count: int) -> str:
        """A topic with so many records, and up to a batch more in each partition."""
        if (value_bytes, count) in self._topics:
            return self._topics[value_bytes, count]
        name = self._topics[value_bytes, count] = f"measured-{value_bytes}-{count}"
        per_batch = max(1, BATCH_BYTES // (value_bytes + 20))
        digits = random.Random(value_bytes)
        values = ("".join(digits.choices("0123456789abcdef", k=value_bytes)) for _ in range(per_batch))
        rows = [NewRecord(value.encode(), None, 1_700_000_000_000 + n) for n, value in enumerate(values)]
        data = encode_batch(rows)
        with RawClient(self._broker.port) as client:
            client.create_topic(name, PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce(name, data, -(-count // PARTITIONS // per_batch), partition=partition)
        return name

    def load(self, topic: str) -> kafkalog.Load:
        options: dict[str, Any] = {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "subscribe": topic,
        }
        return kafkalog.load(None, name="measured", offsets=self._new_path(), **options)

    def parquet(self, topic: str, path: str = "", **how: Any) -> list[Path]:
        """Loads; returns the files, if they are on the disk."""
        with self.load(topic) as load:
            load.write_parquet(path or self._new_path(), compression="snappy", **how)
        assert load.commit is not None
        (output,) = load.commit.outputs
        return [Path(output.path, output.directory, file.name) for file in output.files]

    def delta(self, topic: str) -> None:
        with self.load(topic) as load:
            load.write_delta(str(self._new_path()), compression="snappy")

    def iceberg(self, topic: str) -> None:
        root = self._new_path()
        root.mkdir()
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
        with self.load(topic) as load:
            load.write_iceberg("measured.events", catalog=catalog, compression="snappy")

    def _consumed(self, topic: str) -> None:
        path, servers = str(self._new_path()), self._broker.bootstrap_servers
        config = {"bootstrap.servers": servers, "group.id": "measured", "enable.auto.commit": False}
        consumer = Consumer(config)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        left = sum(consumer.get_watermark_offsets(TopicPartition(topic, n))[1] for n in range(PARTITIONS))
        while left:
            messages: list[Message] = []
            while left and len(messages) < CONSUMED:
                found = consumer.consume(min(left, 10_000), 60)
                messages += found
                left -= len(found)
            write_deltalake(path, _table_of(messages), mode="append")
        consumer.close()

    def _write_alone(self, value_bytes: int, count: int) -> None:
        rows = self._one_batch(value_bytes)
        times = count // PARTITIONS // rows.num_rows
        LocalEngine(PARTITIONS).run(WriteTask(str(self._new_path()), rows, times), PARTITIONS)

    def _one_batch(self, value_bytes: int) -> pa.RecordBatch:
        """As the source makes them."""
        topic = self.topic(value_bytes, (8 << 20) // value_bytes)
        with kafkalog.read_arrow(self._broker.bootstrap_servers, topic) as reader:
            return next(iter(reader))

    def _in_a_process(self, topic: str) -> str:
        """A whole program with a load; it prints the most memory that a task's process had, in KiB."""
        code = (
            "import resource, sys\n"
            "import pyspark_kafkalog as kafkalog\n"
            "_, servers, topic, offsets, path = sys.argv\n"
            "options = {'kafka.bootstrap.servers': servers, 'subscribe': topic}\n"
            "with kafkalog.load(None, name='measured', offsets=offsets, **options) as load:\n"
            "    load.write_parquet(path, compression='snappy')\n"
            "assert load.commit\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        )
        given = [self._broker.bootstrap_servers, topic, str(self._new_path()), str(self._new_path())]
        ran = subprocess.run(
            [sys.executable, "-c", code, *given], stdout=subprocess.PIPE, text=True, check=True
        )
        return ran.stdout

    def _new_path(self) -> Path:
        return self._directory / uuid.uuid4().hex


@dataclass(frozen=True)
class WriteTask:
    """Pickled into each task: writes the same rows again and again."""

    place: str
    rows: pa.RecordBatch
    times: int

    def __call__(self, index: int, _tell: Tell) -> list[str]:
        files = ParquetFiles(
            open_store(self.place),
            "load",
            f"part-{index}",
            self.rows.schema,
            Layout(compression="snappy"),
            {},
        )
        for _ in range(self.times):
            files.add(self.rows)
        files.close()
        return []


def _table_of(messages: Sequence[Message]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([one.key() for one in messages], pa.binary()),
            "value": pa.array([one.value() for one in messages], pa.binary()),
            "partition": pa.array([one.partition() for one in messages], pa.int32()),
            "offset": pa.array([one.offset() for one in messages], pa.int64()),
            "timestamp": pa.array([one.timestamp()[1] for one in messages], pa.int64()),
        }
    )


def _nothing(_index: int, _tell: Tell) -> list[str]:
    return []


def _none(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 0)


def _upload(client: S3Store, files: list[Path]) -> None:
    name = uuid.uuid4().hex
    with ThreadPoolExecutor(PARTITIONS) as pool:
        list(pool.map(lambda file: obstore.put(client, f"{name}/{file.name}", file), files))
