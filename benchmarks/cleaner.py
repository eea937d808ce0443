"""How fast is the log cleaner, what do others notice of it, and how soon are consumer offsets loaded?

A topic of 16 kB batches, each of a quarter as many keys written about four times, is made to be compacted;
the clock runs from that call until the broker's checkpoint says that it is clean, which includes the 50 ms
that both brokers rest between looks. Only full segments count. Meanwhile a client sends one record after the
other to another topic. Our broker and Apache Kafka do this in turn, with the same files on the same disk; the
goals are rates and times, so a row has the goal where the ratio stands, as rate over goal.

``processor`` in a note is the broker's seconds for a round, ours and then Kafka's.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.broker_and_kafka import OURS, Served, both
from benchmarks.harness import Row, cost, shown
from benchmarks.raw_client import RawClient, encode, produce_request
from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import start_broker
from kafkalog_broker.logs.cleaner import CHECKPOINT_NAME, LogCleaner
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_value,
)
from pyspark_kafkalog.client.admin import NewTopic, alter_topic_configs, create_topics
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.foreign.apache_kafka import fetch

PEER = "Apache Kafka 3.9.1"
SEGMENT_BYTES = 32 << 20
BATCH_BYTES = 16 << 10
SIZES = {1000: (256 << 20, 100.0), 100: (96 << 20, 15.0)}
"""Bytes of a value: bytes of the topic, and the goal in MB/s."""
LATENCY_GOAL_MS = 5.0
COMMITS, KEYS = 1_000_000, 50_000
_TIMEOUT_SECONDS = 120
_PACE_SECONDS = 0.002


@dataclass(frozen=True)
class Round:
    """One cleaning: the broker's rate and processor seconds, and other clients' median latency."""

    megabytes_per_second: float
    processor: float
    latency_ms: float
    idle_ms: float


def cleaned(broker: Served, name: str, value_bytes: int, total: int, others: str) -> Round:
    """Fill a topic, have it compacted, and wait for it."""
    create_topics(
        broker.servers,
        [NewTopic(name, 1, 1, {"segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"})],
    )
    with RawClient(broker.port) as client:
        _fill(client, name, value_bytes, total)
        idle_ms = 1000 * statistics.median(_Others(broker.port, others).during(lambda: time.sleep(0.5)))
        full = _full_segments(broker.data, name)
        before = _processor(broker.pid)
        began = time.perf_counter()

        def wait() -> None:
            alter_topic_configs(broker.servers, name, set={"cleanup.policy": "compact"})
            _wait_until_clean(broker.data, name)

        latencies = _Others(broker.port, others).during(wait)
        seconds = time.perf_counter() - began
        processor = _processor(broker.pid) - before
        client.delete_topic(name)
    return Round(full / seconds / 1e6, processor, 1000 * statistics.median(latencies), idle_ms)


def _fill(client: RawClient, name: str, value_bytes: int, total: int) -> None:
    chance = random.Random(value_bytes)
    count = max(1, BATCH_BYTES // (value_bytes + 24))
    keys = total // (value_bytes + 24) // 4
    value = chance.randbytes(value_bytes)
    now = time.time_ns() // 1_000_000
    frames = []
    for _ in range(total // BATCH_BYTES):
        records = [NewRecord(value, b"key-%09d" % chance.randrange(keys), now) for _ in range(count)]
        frames.append(encode(produce_request(name, encode_batch(records))))
    for frame in frames:
        client.round_trips(frame, 1)


def _full_segments(data: Path, name: str) -> int:
    (directory,) = (path for path in data.iterdir() if path.is_dir() and _is_partition(path.name, name))
    segments = sorted([*directory.glob("*.kafka"), *directory.glob("*.log")])
    return sum(path.stat().st_size for path in segments[:-1])


def _is_partition(directory: str, name: str) -> bool:
    return directory in (f"{name}-0", f"{name}_0")


def _wait_until_clean(data: Path, name: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    checkpoint = data / CHECKPOINT_NAME
    while not checkpoint.exists() or f"\n{name} 0 " not in checkpoint.read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} was not cleaned within {_TIMEOUT_SECONDS} s")
        time.sleep(0.005)


class _Others:
    """Somebody else, who sends one record after the other."""

    def __init__(self, port: int, topic: str) -> None:
        self._port = port
        record = NewRecord(b"v" * 100, b"k", time.time_ns() // 1_000_000)
        self._frame = encode(produce_request(topic, encode_batch([record])))

    def during(self, call: Callable[[], object]) -> list[float]:
        """Seconds of each request while ``call`` runs."""
        samples: list[float] = []
        ended = threading.Event()

        def send() -> None:
            with RawClient(self._port) as client:
                # At a pace, or quick requests would count more often than slow ones.
                while not ended.wait(_PACE_SECONDS):
                    samples.extend(client.round_trips(self._frame, 1))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            call()
        finally:
            ended.set()
            thread.join()
        return samples


def _processor(pid: int) -> float:
    process = psutil.Process(pid)
    spent = process.cpu_times()
    return float(spent.user + spent.system + spent.children_user + spent.children_system) + sum(
        sum(child.cpu_times()[:2]) for child in process.children(recursive=True)
    )


def cleaning(rounds: int) -> list[Row]:
    of_kafka = {"log_cleaner_backoff_ms": "50", "log_segment_delete_delay_ms": "0"}
    rows: list[Row] = []
    with both(fetch(), PEER, {"log.cleaner.backoff.ms": "50"}, **of_kafka) as brokers:
        for each in brokers.values():
            create_topics(each.servers, [NewTopic("others", 1, 1)])
        for value_bytes, (total, goal) in SIZES.items():
            found: dict[str, list[Round]] = {name: [] for name in brokers}
            for number in range(rounds + 1):
                for name, each in brokers.items():
                    measured = cleaned(each, f"c-{value_bytes}-{number}", value_bytes, total, "others")
                    if number:
                        found[name].append(measured)
            rows += shown(_rows(value_bytes, goal, found))
    return rows


def _rows(value_bytes: int, goal: float, found: Mapping[str, list[Round]]) -> list[Row]:
    def median(name: str, field: str) -> float:
        return statistics.median(getattr(each, field) for each in found[name])

    rate, peer = median(OURS, "megabytes_per_second"), median(PEER, "megabytes_per_second")
    spent = f"processor {median(OURS, 'processor'):.2f} and {median(PEER, 'processor'):.2f} s"
    latency = median(OURS, "latency_ms")
    idle = f"without a cleaning {median(OURS, 'idle_ms'):.2f} and {median(PEER, 'idle_ms'):.2f} ms"
    return [
        Row(f"cleaning, {value_bytes} B, beside the goal", rate, goal, rate / goal, 1.0, "MB/s", spent),
        Row(f"cleaning, {value_bytes} B", rate, peer, rate / peer, None, "MB/s", f"peer: {PEER}"),
        cost(
            f"others' median latency meanwhile, {value_bytes} B, beside the goal", latency, LATENCY_GOAL_MS,
            "ms", 1.0, f"{PEER}: {median(PEER, 'latency_ms'):.2f} ms; {idle}",
        ),
    ]  # fmt: skip


def offsets(rounds: int) -> list[Row]:
    """How soon a broker that starts knows the offsets that a million commits have stored."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, goal in (("uncleaned", 15.0), ("cleaned", 2.0)):
            directory = Path(scratch) / name
            records = _write_commits(directory, clean=name == "cleaned")
            times = []
            for _ in range(rounds):
                with start_broker(data_dir=directory, properties={"log.cleaner.enable": "false"}) as ours:
                    began = time.perf_counter()
                    _wait_until_loaded(ours.port)
                    times.append(time.perf_counter() - began)
            question = f"offsets of {COMMITS:,} commits by {KEYS:,} keys, {name}, beside the goal"
            note = f"{records / 2**20:.0f} MiB; from the first answer until offsets are answered"
            rows.append(cost(question, statistics.median(times), goal, "s", 1.0, note))
    return rows


def _write_commits(directory: Path, *, clean: bool) -> int:
    """Bytes of an offsets topic with a batch for each commit."""
    logs = LogManager([directory], defaults=LogConfig(), producer_expiration_ms=86_400_000)
    logs.start()
    partition = TopicPartition(OFFSETS_TOPIC, 0)
    overrides = {"cleanup.policy": "compact", "segment.bytes": str(8 << 20)}
    logs.create_topic(OFFSETS_TOPIC, uuid.uuid4(), 1, overrides)
    log = logs.log(partition)
    now_ms = time.time_ns() // 1_000_000
    keys = [encode_key(OffsetKey(f"group-{n % 500}", TopicPartition("topic", n // 500))) for n in range(KEYS)]
    for begun in range(0, COMMITS, 1000):
        data = bytearray()
        for number in range(begun, begun + 1000):
            value = encode_value(CommittedOffset(number, commit_timestamp_ms=now_ms))
            data += encode_batch([NewRecord(value, keys[number * 7919 % KEYS], now_ms)])
        log.append(data, internal=True)
    if clean:
        LogCleaner(
            logs, SYSTEM_CLOCK, FileSystem(), memory_bytes=128 << 20, bytes_per_second=sys.float_info.max
        ).run()
    size = log.size_bytes
    logs.close()
    return size


def _wait_until_loaded(port: int) -> None:
    request = OffsetFetchRequest(
        group_id="group-1", topics=(OffsetFetchRequestTopic("topic", (0,)),), groups=(), require_stable=False
    )
    with RawClient(port) as client:
        while True:
            answer = client.call(request, 5)
            if answer.error_code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            time.sleep(0.005)
    if answer.topics[0].partitions[0].committed_offset < 0:
        raise RuntimeError(f"the offsets are not there: {answer}")


PARTS: dict[str, Callable[[int], list[Row]]] = {"cleaning": cleaning, "offsets": offsets}
"""Each a chapter of its own."""
