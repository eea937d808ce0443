"""How much of what the machine can do does the broker give, and what does it cost?

A broker process (`kafkalog_broker.start_broker`) serves raw clients and librdkafka; its peers are bare loops
that do the same system calls without a protocol (`bare_loops`), and librdkafka's own mock broker in C. Data
lies in /dev/shm where there is one, for broker and loops alike, so that no disk is measured.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
from confluent_kafka import Producer

from benchmarks.bare_loops import Peer
from benchmarks.harness import LIMIT, Row, compare, cost, in_turn
from benchmarks.raw_client import RawClient, batch, encode, fetch_request, produce_request
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord

ROUND_BYTES = 512 << 20
FETCH_BYTES = 1 << 20
SEGMENT_BYTES = 1 << 30
LARGE_LOG_SEGMENTS = 10
MEMORY_LIMIT_MIB = 60
MANY_PARTITIONS = 1000
DESCRIPTORS = 1024
IDLE_CONNECTIONS = 500
_QUICK_DELETE = {"log.segment.delete.delay.ms": 0}


def run(rounds: int = 7) -> list[Row]:
    """All rows of this question; about two minutes."""
    with scratch() as directory:
        return [
            *throughput(directory, rounds),
            *librdkafka(directory, rounds),
            *small_requests(directory, rounds),
            memory(directory),
            start_time(directory, rounds),
        ]


def throughput(directory: Path, rounds: int) -> list[Row]:
    """Fetch against ``sendfile -> recv``, produce against ``socket -> crc32c -> file``."""
    source = directory / "source"
    source.write_bytes(os.urandom(1 << 20) * 256)
    rows = []
    with (
        start_broker(_QUICK_DELETE, data_dir=directory / "throughput") as broker,
        RawClient(broker.port) as client,
        Peer("sendfile", source) as sender,
        Peer("store", directory / "stored") as store,
        apart(broker.pid, sender.pid, store.pid),
    ):
        rows.append(_fetch_row(client, sender, rounds))
        for size, goal in ((64 << 10, 0.75), (1 << 20, 0.65)):
            rows.append(_produce_row(broker.pid, client, store, size, goal, rounds))
    source.unlink()
    return rows


def _fetch_row(client: RawClient, sender: Peer, rounds: int) -> Row:
    data, records = batch(64 << 10)
    batches = (256 << 20) // len(data)
    client.create_topic("fetched")
    client.produce("fetched", data, batches)
    per_fetch = FETCH_BYTES // len(data)
    count = ROUND_BYTES // FETCH_BYTES
    last = batches - per_fetch
    requests = [fetch_request("fetched", i * per_fetch % last * records, FETCH_BYTES) for i in range(count)]

    def ours() -> float:
        seconds, received = client.fetch(requests)
        return seconds * ROUND_BYTES / received  # a fetch is a little below 1 MiB: whole batches

    contestants = {"broker": ours, "bare sendfile loop": lambda: sender.fetch(ROUND_BYTES, FETCH_BYTES)}
    measured = in_turn(contestants, rounds, ROUND_BYTES)
    client.delete_topic("fetched")
    return compare("fetch, 1 MiB", *measured.values(), "MB/s", 0.9)


def _produce_row(broker: int, client: RawClient, store: Peer, size: int, goal: float, rounds: int) -> Row:
    """The note tells what the two cost the processor, removal of the file included: where others use the
    machine too, that is the steadier figure.
    """
    data, _ = batch(size)
    count = ROUND_BYTES // size
    cpu: dict[int, list[float]] = {broker: [], store.pid: []}

    def costed(pid: int, call: Callable[[], float]) -> float:
        before = processor_seconds(pid)
        seconds = call()
        cpu[pid].append((processor_seconds(pid) - before) / count * 1e6)
        return seconds

    def produced() -> float:
        client.create_topic("stored")
        seconds = client.produce("stored", data, count)
        client.delete_topic("stored")
        return seconds * size / len(data)

    contestants = {
        "broker": lambda: costed(broker, produced),
        "bare socket-crc-file loop": lambda: costed(store.pid, lambda: store.store(ROUND_BYTES, size)),
    }
    measured = in_turn(contestants, rounds, ROUND_BYTES)
    spent, least = (statistics.median(each) for each in cpu.values())
    note = f"CPU {spent:.0f} us a request, the loop's {least:.0f}"
    return compare(f"produce, {size >> 10} KiB", *measured.values(), "MB/s", goal, note)


def librdkafka(directory: Path, rounds: int) -> list[Row]:
    """librdkafka's producer with us and with its own mock broker, which is C in the client's process."""
    rows = []
    with (
        start_broker(_QUICK_DELETE, data_dir=directory / "librdkafka") as broker,
        RawClient(broker.port) as client,
    ):
        for size, count, goal in ((100, 500_000, 0.95), (1024, 200_000, 0.85)):
            cpu: list[float] = []

            def ours(size: int = size, count: int = count, cpu: list[float] = cpu) -> float:
                client.create_topic("produced", partitions=4)
                before = processor_seconds(broker.pid)
                seconds = _librdkafka_seconds({"bootstrap.servers": broker.bootstrap_servers}, size, count)
                cpu.append((processor_seconds(broker.pid) - before) / count * 1e6)
                client.delete_topic("produced")
                return seconds

            def mock(size: int = size, count: int = count) -> float:
                return _librdkafka_seconds(
                    {"bootstrap.servers": "replaced by the mock", "test.mock.num.brokers": 1}, size, count
                )

            measured = in_turn({"broker": ours, "librdkafka's mock broker": mock}, rounds, count)
            question = f"librdkafka produces {size} B messages"
            note = f"broker CPU {statistics.median(cpu):.2f} s per million"
            rows.append(compare(question, *measured.values(), "k messages/s", goal, note))
    return rows


def _librdkafka_seconds(settings: Mapping[str, object], size: int, count: int) -> float:
    producer = Producer(
        {
            **settings,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 0,
        }
    )
    producer.list_topics("produced", timeout=30)
    value, produce = bytes(size), producer.produce
    started = time.perf_counter()
    for number in range(count):
        produce("produced", value)
        if not number % 10_000:
            producer.poll(0)
    left = producer.flush(60)
    seconds = time.perf_counter() - started
    if left:
        raise RuntimeError(f"{left} messages were not delivered")
    return seconds


def small_requests(directory: Path, rounds: int, count: int = 2000) -> list[Row]:
    """One record per request, acks 1: latency against a bare echo, and what idle connections cost."""
    data, _ = batch(200, value_bytes=100)
    frame = encode(produce_request("small", data))
    with (
        start_broker(data_dir=directory / "small") as broker,
        RawClient(broker.port) as client,
        Peer("echo", directory) as echo,
        apart(broker.pid, echo.pid),
    ):
        client.create_topic("small")
        answer_bytes = client.answer_bytes(frame)

        def microseconds() -> list[float]:
            contestants = {
                "broker": lambda: statistics.median(client.round_trips(frame, count)),
                "bare echo": lambda: statistics.median(echo.round_trips(count, len(frame), answer_bytes)),
            }
            return [one.median * 1e6 for one in in_turn(contestants, rounds).values()]

        alone, loop = microseconds()
        with contextlib.ExitStack() as connections:
            for _ in range(IDLE_CONNECTIONS):
                connections.enter_context(RawClient(broker.port))
            crowded, _ = microseconds()
    beside = f"the same beside {IDLE_CONNECTIONS} idle connections"
    return [
        cost("median latency of a 100 B produce request", alone, loop, "us", 0.71, "peer: bare echo"),
        cost(beside, crowded, alone, "us", 0.9, "peer: ourselves without them"),
    ]


def memory(directory: Path) -> Row:
    """Resident size of the broker while a log of 10 GiB is read from end to end."""
    data_dir = directory / "large"
    with start_broker(data_dir=data_dir) as broker, RawClient(broker.port) as client:
        client.create_topic("large")
    offsets = _write_large_log(data_dir / "large_0")
    largest = 0
    with start_broker(data_dir=data_dir) as broker, RawClient(broker.port) as client:
        process = psutil.Process(broker.pid)
        received = 0
        for offset in range(0, offsets, 64):
            requests = [fetch_request("large", offset + i, FETCH_BYTES) for i in range(64)]
            received += client.fetch(requests)[1]
            largest = max(largest, process.memory_info().rss)
    if received < LARGE_LOG_SEGMENTS << 30:
        raise RuntimeError(f"only {received} bytes of the log were served")
    return cost("resident memory while 10 GiB are served", largest / 2**20, MEMORY_LIMIT_MIB, "MiB", 1.0)


def _write_large_log(directory: Path) -> int:
    """Ten segments of 1024 batches of 1 MiB, all zeros but their first bytes: mostly holes. The end offset.

    A batch's checksum does not cover its base offset: the batches differ in nothing else.
    """
    size = FETCH_BYTES
    value = bytes(size - 61 - 20)
    made = encode_batch([NewRecord(value, timestamp=time.time_ns() // 1_000_000)])
    value = value[: len(value) - (len(made) - size)] if len(made) > size else value + bytes(size - len(made))
    made = encode_batch([NewRecord(value, timestamp=time.time_ns() // 1_000_000)])
    head = bytearray(made[:128])
    per_segment = SEGMENT_BYTES // len(made)
    for file in directory.glob("*.kafka"):
        file.unlink()
    for number in range(LARGE_LOG_SEGMENTS):
        with (directory / f"{number * per_segment:011d}.kafka").open("wb") as file:
            for i in range(per_segment):
                head[:8] = (number * per_segment + i).to_bytes(8, "big")
                file.seek(i * len(made))
                file.write(head)
            file.truncate(per_segment * len(made))
    return LARGE_LOG_SEGMENTS * per_segment


def start_time(directory: Path, rounds: int) -> Row:
    """From the start of the process to the first answer, with 1,000 partitions after a clean stop."""
    data, _ = batch(200, value_bytes=100)
    data_dir = directory / "many"
    seconds = []
    with _descriptors(DESCRIPTORS), start_broker(data_dir=data_dir) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("many", partitions=MANY_PARTITIONS)
            client.call(produce_request("many", data, range(MANY_PARTITIONS)))
        for _ in range(rounds):
            broker.stop()
            started = time.perf_counter()
            broker.start()
            with RawClient(broker.port) as client:
                client.call(produce_request("many", data, [MANY_PARTITIONS - 1]))
            seconds.append(time.perf_counter() - started)
    question = f"start with {MANY_PARTITIONS} partitions, {DESCRIPTORS} descriptors"
    note = f"from exec to the first answer; {LIMIT}"
    return cost(question, statistics.median(seconds), 1.0, "s", 1.0, note)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where the machine has such a file system, removed afterwards."""
    memory_disk = Path("/dev/shm")
    parent = memory_disk if memory_disk.is_dir() and shutil.disk_usage(memory_disk).free > 4 << 30 else None
    directory = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def apart(*pids: int) -> Iterator[None]:
    """Client and servers on processors of their own.

    Left to itself the scheduler puts a loop now beside its client, now on the same processor, and a
    round trip or a sendfile then differs threefold from one round to the next.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(processors) < 2:
        yield
        return
    os.sched_setaffinity(0, processors[:1])
    try:
        for pid in pids:
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, processors[1:2])
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextlib.contextmanager
def _descriptors(limit: int) -> Iterator[None]:
    """Processes started meanwhile may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
