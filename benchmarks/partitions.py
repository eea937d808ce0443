"""What do 10,000 partitions cost: to create, to fetch from, to flush, to stop and to start?

A broker process has one topic of `PARTITIONS` partitions with one record in each, on the disk that holds the
temporary directory (``TMPDIR``): this benchmark is about disks. Creation is run beside a client that asks for
one small topic again and again, flush and stop are set against as many bare fsyncs of small files on the same
disk, and the starts against the seconds that are wanted of them. One pass, no rounds: steps take seconds.
What every test pays is measured first: `start_broker` without data, until a client has its first topic.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.harness import LIMIT, Row, cost
from benchmarks.raw_client import RawClient, batch, encode, produce_request
from kafkalog_broker import start_broker
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic

PARTITIONS = int(os.environ.get("KAFKALOG_BENCHMARK_PARTITIONS", "10000"))
"""Partitions of the topic; fewer for a quick look."""

_TOPIC = "many"
_LATENCY_LIMIT_MS = 250.0
_CLEAN_START_SECONDS, _KILLED_START_SECONDS, _STOP_SECONDS = 1.0, 2.0, 15.0
"""What is wanted of 10,000 partitions."""
_EMPTY_START_SECONDS, _EMPTY_STARTS = 0.3, 7
_PER_PRODUCE = 500
_PATIENCE_SECONDS = 300.0


def run(rounds: int = 1) -> list[Row]:  # noqa: ARG001
    """All rows of this question; one to three minutes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory = Path(name)
        fsyncs = _bare_fsyncs(directory / "bare")
        data = directory / "data"
        rows = [_embedded()]
        with _Broker(data) as broker:
            rows.append(_creation(broker.port))
            _fill(broker.port)
            rows.append(_flush(data, fsyncs))
            rows.append(_fetch(broker.port))
            _fill(broker.port)
            rows.append(_within("stop, one new record in each", broker.stop(), _STOP_SECONDS))
        with _Broker(data) as broker:
            rows.append(_within("start after a clean stop", broker.started_in, _CLEAN_START_SECONDS))
            rows.append(_within("stop, nothing new", broker.stop(), _STOP_SECONDS))
        with _Broker(data) as broker:
            _fill(broker.port)
            broker.kill()
        with _Broker(data) as broker:
            took = broker.started_in
            rows.append(_within("start after SIGKILL, all written to", took, _KILLED_START_SECONDS))
            time.sleep(5)
            broker.kill()
        with _Broker(data) as broker:
            took = broker.started_in
            rows.append(_within("start after SIGKILL, nothing written", took, _KILLED_START_SECONDS))
        return rows


def _embedded() -> Row:
    took = []
    for _ in range(_EMPTY_STARTS):
        began = time.perf_counter()
        with start_broker() as broker, RawClient(broker.port) as client:
            client.create_topic("first")
            took.append(time.perf_counter() - began)
    return _within("start_broker() to the first topic", statistics.median(took), _EMPTY_START_SECONDS)


class _Broker:
    """A broker process of its own, as a service would run it."""

    def __init__(self, data: Path) -> None:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kafkalog_broker", "start", "--log-level", "WARNING",
             "--override", "listeners=PLAINTEXT://127.0.0.1:0", "--override", f"log.dirs={data}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.started_in = time.perf_counter() - began
        if "listens on" not in line:
            raise RuntimeError(f"the broker did not start: {line!r}")
        self.port = int(line.split("PLAINTEXT://127.0.0.1:")[1].split(";")[0].split(",")[0])

    def stop(self) -> float:
        began = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE_SECONDS)
        return time.perf_counter() - began

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> _Broker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self.kill()


def _creation(port: int) -> Row:
    """Seconds to create them, against the longest that another client waits for a small answer meanwhile."""
    with RawClient(port) as client, RawClient(port) as other:
        client.create_topic("small")
        frame = encode(MetadataRequest(topics=(MetadataRequestTopic(name="small"),)), 4)
        over, waits = threading.Event(), [0.0]

        def ask() -> None:
            while not over.is_set():
                waits.extend(other.round_trips(frame, 1))
                time.sleep(0.001)

        thread = threading.Thread(target=ask)
        thread.start()
        began = time.perf_counter()
        client.create_topic(_TOPIC, PARTITIONS)
        took = time.perf_counter() - began
        over.set()
        thread.join()
    question = f"another client's longest wait while {PARTITIONS:,} are created"
    note = f"{LIMIT}; median {1000 * statistics.median(waits):.1f} ms; created in {took:.1f} s"
    return cost(question, 1000 * max(waits), _LATENCY_LIMIT_MS, "ms", 1.0, note)


def _fill(port: int) -> None:
    data, _ = batch(200, 100)
    with RawClient(port) as client:
        for first in range(0, PARTITIONS, _PER_PRODUCE):
            numbers = range(first, min(PARTITIONS, first + _PER_PRODUCE))
            client.call(produce_request(_TOPIC, data, numbers))


def _flush(data: Path, fsyncs: float) -> Row:
    """Seconds from the last record until the recovery points say that all are on the disk."""
    began = time.perf_counter()
    points = data / "recovery-points"
    while time.perf_counter() - began < _PATIENCE_SECONDS:
        lines = points.read_text().splitlines() if points.exists() else []
        if sum(line.startswith(f"{_TOPIC}_") and line.endswith(" 1") for line in lines) == PARTITIONS:
            break
        time.sleep(0.02)
    took = time.perf_counter() - began
    question = f"from the last of {PARTITIONS:,} records to all on the disk"
    note = f"peer: {PARTITIONS:,} bare fsyncs; of these seconds 3 to 4 are log.flush.interval.ms"
    return cost(question, took, fsyncs, "s", note=note)


def _fetch(port: int) -> Row:
    """All partitions over one connection: whole requests until each has come."""
    left = dict.fromkeys(range(PARTITIONS), 0)
    answers, began = 0, time.perf_counter()
    with RawClient(port) as client:
        while left and time.perf_counter() - began < _PATIENCE_SECONDS:
            wants = tuple(FetchPartition(n, fetch_offset=0, partition_max_bytes=1 << 20) for n in left)
            request = FetchRequest(
                max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, session_epoch=-1,
                topics=(FetchTopic(topic=_TOPIC, partitions=wants),),
            )  # fmt: skip
            answers += 1
            for partition in client.call(request).responses[0].partitions:
                if partition.records:
                    del left[partition.partition_index]
    took = time.perf_counter() - began
    note = f"peer: a minute; {answers} answers, {len(left)} partitions never came"
    return cost(f"fetch of {PARTITIONS:,} partitions over one connection", took, 60.0, "s", 1.0, note)


def _within(question: str, took: float, wanted: float) -> Row:
    return cost(question, took, wanted * PARTITIONS / 10_000, "s", 1.0)


def _bare_fsyncs(directory: Path) -> float:
    """Seconds to fsync as many small new files, each in a directory of its own, one after the other."""
    for number in range(PARTITIONS):
        (directory / str(number)).mkdir(parents=True)
        (directory / str(number) / "file").write_bytes(bytes(100))
    began = time.perf_counter()
    for number in range(PARTITIONS):
        descriptor = os.open(directory / str(number) / "file", os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - began
