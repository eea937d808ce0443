"""Where do the processor seconds of a read go: worker, kernel and JVM, for one GB of values?

One thread does what a Python worker of Spark does, first receiving alone, then with decoding, then with
Arrow's stream into a socket, so that the difference is a stage. Each is set against the least that it could
be: receiving into one buffer and looking at nothing; a checksum and one copy; the same bytes in large writes.
The figures are of that thread, user and system, the kernel's copying included; the broker runs in another
thread, and another process empties the socket. The JVM's are those of a whole read in Spark to ``noop``,
beside ready-made record batches. Logs have batches of 64 KiB, or of one record where that is larger.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import crc32c
import pyarrow as pa

from benchmarks.broker import scratch
from benchmarks.harness import Row, cost, in_turn
from benchmarks.raw_client import RawClient, fetch_request
from benchmarks.spark_connector import OURS, WARM_DAEMON, spending
from benchmarks.spark_read import BATCH_BYTES, COLUMNS, CORES, KEY, noop, ready_made, session
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord, TopicPartition

VALUE_BYTES = (100, 1000, 10_000, 1_000_000)
GB = 10**9
FETCH_BYTES = 8 << 20  # as a task's, once its fetches have grown
SPARK_BUFFER_BYTES = 1 << 16  # ``spark.buffer.size``
READY = "ready-made Arrow batches"


def run(rounds: int = 5) -> list[Row]:
    """All rows of this question; about five minutes."""
    rows = []
    with (
        scratch() as directory,
        start_broker({"log.retention.ms": -1}, data_dir=directory) as running,
        session(CORES, WARM_DAEMON) as spark,
    ):
        for value_bytes in VALUE_BYTES:
            stages = _Stages(running.port, value_bytes)
            rows += [*stages.of_worker(rounds), stages.of_jvm(spark, running.bootstrap_servers, rounds)]
            with RawClient(running.port) as client:
                client.delete_topic(stages.topic)
    return rows


class _Stages:
    """A GB of values of one size, in a topic of its own."""

    def __init__(self, port: int, value_bytes: int) -> None:
        self.port, self.value_bytes, self.topic = port, value_bytes, f"values-{value_bytes}"
        value = bytes(i % 251 for i in range(value_bytes))
        per_batch = max(1, BATCH_BYTES // (value_bytes + len(KEY) + 10))
        self.batch = encode_batch([NewRecord(value, KEY, 1_700_000_000_000)] * per_batch)
        batches = -(-GB // value_bytes // per_batch)
        self.count, self.bytes = batches * per_batch, batches * len(self.batch)
        self.config = ConsumerConfig(
            bootstrap_servers=f"127.0.0.1:{port}", max_partition_fetch_bytes=FETCH_BYTES
        )
        with RawClient(port) as client:
            client.create_topic(self.topic)
            client.produce(self.topic, self.batch, batches)

    def of_worker(self, rounds: int) -> list[Row]:
        """Receiving, decoding and sending; the decoder's warm-up is a round that does not count."""
        calls: dict[str, Callable[[], object]] = {
            "bare receive": self._bare_receive,
            "receive": lambda: _consume(self._fetched()),
            "bare decode": self._bare_decode,
            "and decode": lambda: _consume(self._decoded()),
            "bare send": self._bare_send,
            "and send": lambda: _sent(self._decoded()),
        }
        measured = in_turn({name: partial(_thread_seconds, call) for name, call in calls.items()}, rounds)
        took = {name: one.median for name, one in measured.items()}
        stages = (
            ("receive", took["receive"], took["bare receive"], "recv into one buffer"),
            ("decode", took["and decode"] - took["receive"], took["bare decode"], "a checksum and one copy"),
            ("send", took["and send"] - took["and decode"], took["bare send"], "writes of 1 MiB"),
        )
        return [
            cost(f"1 GB of {self.value_bytes} B: {name}", ours, peer, "s", note=f"peer: {bare}")
            for name, ours, peer, bare in stages
        ]

    def of_jvm(self, spark: Any, servers: str, rounds: int) -> Row:
        """Spark's own part, and the worker's as it really is."""
        reader = spark.read.format("kafkalog").option("kafka.bootstrap.servers", servers)
        ready = spark.read.format("ready_made").options(rows=self.count, valuebytes=self.value_bytes, tasks=1)
        frames = {OURS: reader.option("subscribe", self.topic).load(), READY: ready.load()}
        calls = {name: partial(noop, frame) for name, frame in frames.items()}
        ours, peer = spending(calls, rounds, warm_up=1)[1].values()
        note = f"peer: {READY}; the workers beside it: {ours.workers:.2f} and {peer.workers:.2f}"
        return cost(f"1 GB of {self.value_bytes} B: JVM", ours.jvm, peer.jvm, "s", note=note)

    def _fetched(self) -> Iterator[Fetched]:
        with closing(Cluster(self.config)) as cluster:
            where = TopicPartition(self.topic, 0)
            fetcher = PartitionFetcher(cluster, where, 0, self.count, config=self.config)
            yield from fetcher
            fetcher.close()

    def _decoded(self) -> Iterator[pa.RecordBatch]:
        decoder = RecordBatchDecoder(topic=self.topic, partition=0, columns=COLUMNS)
        position = 0
        for fetched in self._fetched():
            position = yield from decoder.stream(
                fetched.data, position, self.count, fetched.aborted, fetched.expected
            )

    def _bare_receive(self) -> None:
        per_fetch = max(1, FETCH_BYTES // len(self.batch)) * (self.count * len(self.batch) // self.bytes)
        requests = [
            fetch_request(self.topic, offset, FETCH_BYTES) for offset in range(0, self.count, per_fetch)
        ]
        with RawClient(self.port) as client:
            client.fetch(requests, window=2)

    def _bare_decode(self) -> None:
        # As far away in memory as what was just received, so that it does not come out of the cache.
        source = memoryview(self.batch * max(1, FETCH_BYTES // len(self.batch)))
        target, size = memoryview(bytearray(len(source))), len(self.batch)
        for _ in range(self.bytes // len(source)):
            for at in range(0, len(source), size):
                crc32c.crc32c(source[at : at + size])
                target[at : at + size] = source[at : at + size]

    def _bare_send(self) -> None:
        block = bytes(1 << 20)
        with _Drain() as out:
            for _ in range(self.bytes >> 20):
                out.write(block)


_DRAIN = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as near:
    buffer = bytearray(1 << 20)
    while near.recv_into(buffer):
        pass
"""


class _Drain:
    """A file whose bytes go over TCP to a process that throws them away, as a worker's do to the JVM."""

    def __enter__(self) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._process = subprocess.Popen([sys.executable, "-c", _DRAIN, str(server.getsockname()[1])])
            near, _ = server.accept()
        with near:
            self._file = os.fdopen(os.dup(near.fileno()), "wb", SPARK_BUFFER_BYTES)
        return self._file

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._process.wait()


def _sent(batches: Iterator[pa.RecordBatch]) -> None:
    """As PySpark's worker sends them."""
    schema = ready_made(1, 1).schema
    with _Drain() as out, pa.RecordBatchStreamWriter(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _consume(items: Iterator[object]) -> None:
    for _ in items:
        pass


def _thread_seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began
