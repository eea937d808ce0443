"""How does our broker compare with Apache Kafka 4.1, asked by the same clients?

Both brokers run in processes of their own and are served in turn: Kafka with the options of its own start
script, both with their default threads, logs in one file system. librdkafka's clients, as many as a row says,
share one process, with a thread each; producers have sent something before they are measured. Kafka's own
performance tools begin anew each round; what counts is the rate that they report. The consumer's tool joins a
group of its own, and its rate is without the time of that.

Values have 100 bytes, of which a codec can make half. ``processor`` in a note is seconds of broker + clients
for a round, ours and then Kafka's. The goal is Kafka's own rate, and more (`FREE_GOAL`) where its clients
take less of the processors than Kafka does, so that the broker is what is measured.

Each of `PARTS` is a chapter of results/broker_and_kafka.md and can be run alone: ``python -m benchmarks
broker_and_kafka.consume``.
"""

from __future__ import annotations

import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.broker import processor_seconds
from benchmarks.harness import Measurement, Row, compare, cost, shown
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from tests.support.foreign.apache_kafka import AS_SHIPPED, ApacheKafka, fetch, java

KAFKA = "4.1.1"
OURS, PEER = "ours", f"Apache Kafka {KAFKA}"
VALUE_BYTES = 100
GOAL, FREE_GOAL = 1.0, 1.2
_TIMEOUT_SECONDS = 120
_STARTS = 3
_RATE = re.compile(r"([\d.]+) records/sec")


@dataclass(frozen=True)
class Work:
    """What clients do in one round, ``messages`` in all."""

    kind: str  # ``produce``, ``single`` (one record a request, each awaited) or ``consume``
    clients: int
    partitions: int
    messages: int
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        kind = {"single": "one record a request"}.get(self.kind, self.kind)
        more = ", ".join(f"{name}={value}" for name, value in self.properties.items())
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return ", ".join(part for part in (f"librdkafka {kind}", clients, partitions, more) if part)


WORKS = {
    "produce": (
        *(Work("produce", clients, count, 1_000_000) for clients in (1, 10, 50) for count in (1, 100)),
        Work("produce", 1, 1, 1_000_000, {"acks": "all"}),
        Work("produce", 1, 1, 1_000_000, {"compression.type": "lz4"}),
        Work("produce", 10, 100, 1_000_000, {"acks": "all", "compression.type": "lz4"}),
        *(Work("single", clients, 1, 20_000) for clients in (1, 10)),
    ),
    "consume": tuple(
        Work("consume", clients, count, 1_000_000) for clients in (1, 10, 50) for count in (1, 100)
    ),
}
"""What librdkafka is asked for, by part; a consumer without a partition of its own reads one again."""


def _librdkafka(part: str, rounds: int) -> list[Row]:
    with both(fetch(KAFKA)) as brokers:
        contest = Contest(brokers, rounds)
        return [row for work in WORKS[part] for row in shown([contest.of_librdkafka(work)])]


def _tools(rounds: int) -> list[Row]:
    """Kafka's own tools, how soon a broker serves, and what it holds after all that."""
    jars = fetch(KAFKA)
    rows = shown([_start_time(jars)])
    with both(jars) as brokers:
        contest = Contest(brokers, rounds)
        for of_tool in (contest.of_producer_tool, contest.of_consumer_tool):
            for partitions in (1, 100):
                rows += shown([of_tool(jars, partitions)])
        return rows + shown([contest.memory()])


PARTS: dict[str, Callable[[int], list[Row]]] = {
    **{part: partial(_librdkafka, part) for part in WORKS},
    "tools": _tools,
}
"""Each a chapter of its own, of some five minutes with five rounds."""


@dataclass(frozen=True)
class Served:
    servers: str
    pid: int
    data: Path

    @property
    def port(self) -> int:
        return int(self.servers.rpartition(":")[2])


@contextmanager
def both(
    jars: Path, peer: str = PEER, properties: Mapping[str, str] | None = None, **of_kafka: str
) -> Iterator[dict[str, Served]]:
    """Both brokers, by name; ``properties`` are of ours."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "ours")
        kafka = ApacheKafka(jars, Path(directory, "kafka"), options=AS_SHIPPED, **of_kafka)
        with start_broker({"log.retention.ms": -1, **(properties or {})}, data_dir=data) as ours:
            kafka.start()
            try:
                yield {
                    OURS: Served(ours.bootstrap_servers, ours.pid, data),
                    peer: Served(kafka.bootstrap_servers, kafka.pid, kafka.data_dir),
                }
            finally:
                kafka.stop()


def _start_time(jars: Path) -> Row:
    times: dict[str, list[float]] = {OURS: [], PEER: []}
    for _ in range(_STARTS):
        with tempfile.TemporaryDirectory() as directory:
            began = time.perf_counter()
            ours = start_broker(data_dir=Path(directory, "ours"))
            times[OURS].append(time.perf_counter() - began)
            ours.stop()
            kafka = ApacheKafka(jars, Path(directory, "kafka"), options=AS_SHIPPED)
            began = time.perf_counter()
            kafka.start()
            times[PEER].append(time.perf_counter() - began)
            kafka.stop()
    mine, peer = map(statistics.median, times.values())
    return cost("start, until it serves", mine, peer, "s", GOAL, f"peer: {PEER}")


class Contest:
    """*Not thread-safe.* Both brokers, and what is asked of them in turn."""

    def __init__(self, brokers: Mapping[str, Served], rounds: int) -> None:
        self._brokers = brokers
        self._rounds = rounds
        self._topics = 0

    def of_librdkafka(self, work: Work) -> Row:
        topics = {name: self._topic(name, work.partitions) for name in self._brokers}
        if work.kind == "consume":
            filled = Work("produce", 1, work.partitions, work.messages)
            for name, broker in self._brokers.items():
                _clients(broker.servers, topics[name], filled)

        def ask(name: str) -> tuple[float, float]:
            found = _clients(self._brokers[name].servers, topics[name], work)
            return found["seconds"], found["processor"]

        return self._measured(work.question, work.messages, ask)

    def of_producer_tool(self, jars: Path, partitions: int) -> Row:
        """Kafka's own producer and its own idea of its rate."""
        count = 1_000_000
        topics = {name: self._topic(name, partitions) for name in self._brokers}

        def ask(name: str) -> tuple[float, float]:
            command = java(
                jars, "org.apache.kafka.tools.ProducerPerformance", "--topic", topics[name],
                "--num-records", str(count), "--record-size", str(VALUE_BYTES), "--throughput", "-1",
                "--producer-props", f"bootstrap.servers={self._brokers[name].servers}", options=_TOOL,
            )  # fmt: skip
            out, processor = _ran(command)
            return count / float(_RATE.findall(out)[-1]), processor

        return self._measured(f"kafka-producer-perf-test, partitions: {partitions}", count, ask)

    def of_consumer_tool(self, jars: Path, partitions: int) -> Row:
        """Kafka's own consumer in a group, and its own idea of its rate."""
        count = 1_000_000
        topics = {name: self._topic(name, partitions) for name in self._brokers}
        for name, broker in self._brokers.items():
            _clients(broker.servers, topics[name], Work("produce", 1, partitions, count))

        def ask(name: str) -> tuple[float, float]:
            command = java(
                jars, "org.apache.kafka.tools.ConsumerPerformance", "--topic", topics[name],
                "--bootstrap-server", self._brokers[name].servers, "--messages", str(count),
                "--timeout", str(_TIMEOUT_SECONDS * 1000 // 2), options=_TOOL,
            )  # fmt: skip
            out, processor = _ran(command)
            heads, figures = (line.split(", ") for line in out.splitlines() if line.count(", ") == 9)
            found = dict(zip(heads, figures, strict=True))
            if int(found["data.consumed.in.nMsg"]) < count:
                raise RuntimeError(out[-2000:])
            return count / float(found["fetch.nMsg.sec"]), processor

        return self._measured(f"kafka-consumer-perf-test, partitions: {partitions}", count, ask)

    def memory(self) -> Row:
        held = {
            name: psutil.Process(each.pid).memory_info().rss / 2**20 for name, each in self._brokers.items()
        }
        return cost("memory afterwards", held[OURS], held[PEER], "MiB", GOAL, f"peer: {PEER}")

    def _measured(self, question: str, amount: int, ask: Callable[[str], tuple[float, float]]) -> Row:
        measured = {name: Measurement(name, amount) for name in self._brokers}
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in self._brokers}
        for number in range(1 + self._rounds):
            for name, broker in self._brokers.items():
                before = processor_seconds(broker.pid)
                seconds, clients = ask(name)
                if number:
                    measured[name].seconds.append(seconds)
                    spent[name].append((processor_seconds(broker.pid) - before, clients))
        medians = {
            name: [statistics.median(each) for each in zip(*spent[name], strict=True)] for name in spent
        }
        note = "processor " + ", ".join(
            f"{medians[name][0]:.2f} + {medians[name][1]:.2f} s" for name in (OURS, PEER)
        )
        broker, clients = medians[PEER]
        goal = FREE_GOAL if broker > clients else GOAL
        return compare(question, measured[OURS], measured[PEER], "k messages/s", goal, note)

    def _topic(self, name: str, partitions: int) -> str:
        self._topics += 1
        topic = f"measured-{self._topics}"
        create_topics(self._brokers[name].servers, [NewTopic(topic, partitions, 1)])
        return topic


_TOOL = ("-Xmx512m",)


def _ran(command: list[str]) -> tuple[str, float]:
    """What a tool prints, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- the clients, in a process of their own


def _clients(servers: str, topic: str, work: Work) -> dict[str, float]:
    task = json.dumps([servers, topic, asdict(work)])
    command = [sys.executable, "-c", "from benchmarks.broker_and_kafka import serve_clients; serve_clients()"]
    done = subprocess.run(
        command, input=task, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def serve_clients() -> None:
    """Do what standard input says, and print what it took."""
    servers, topic, given = json.loads(sys.stdin.read())
    work = Work(**given)
    share = work.messages // work.clients
    make = {"produce": _producer, "single": _single_producer, "consume": _consumer}[work.kind]
    steps = [make(servers, topic, work, number, share) for number in range(work.clients)]
    threads = [threading.Thread(target=step) for step in steps]
    spent = time.process_time()
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "processor": time.process_time() - spent}))


def _value() -> bytes:
    """Random hexadecimal digits, and the same once more."""
    digits = f"{random.Random(1).getrandbits(4 * VALUE_BYTES):0{VALUE_BYTES}x}".encode()
    return digits[: VALUE_BYTES // 2] * 2


def _producer(servers: str, topic: str, work: Work, number: int, share: int) -> Callable[[], None]:
    import confluent_kafka

    properties = {"bootstrap.servers": servers, "acks": 1, "linger.ms": 5, **work.properties}
    producer = confluent_kafka.Producer({**properties, "queue.buffering.max.messages": 2_000_000})
    value = _value()
    producer.produce(topic, value, partition=number % work.partitions)
    _check(producer.flush(_TIMEOUT_SECONDS))

    def send() -> None:
        for count in range(share):
            producer.produce(topic, value, partition=(number + count) % work.partitions)
        _check(producer.flush(_TIMEOUT_SECONDS))

    return send


def _single_producer(servers: str, topic: str, work: Work, number: int, share: int) -> Callable[[], None]:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "acks": 1, "linger.ms": 0, "batch.num.messages": 1}
    )
    value = _value()

    def send() -> None:
        for count in range(share):
            producer.produce(topic, value, partition=(number + count) % work.partitions)
            _check(producer.flush(_TIMEOUT_SECONDS))

    producer.produce(topic, value, partition=0)
    _check(producer.flush(_TIMEOUT_SECONDS))
    return send


def _consumer(servers: str, topic: str, work: Work, number: int, share: int) -> Callable[[], None]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "measured",
            "enable.auto.commit": False,
            # By default librdkafka asks for nothing for a second once its queue is full, which is sooner the
            # faster the broker is; without any pause it spins.
            "fetch.queue.backoff.ms": 10,
        }
    )
    numbers = range(work.partitions)[number :: work.clients] or [number % work.partitions]
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in numbers])

    def read() -> None:
        left = share
        while left > 0:
            messages = consumer.consume(min(10_000, left), _TIMEOUT_SECONDS)
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(message.error())
            left -= len(messages)
        consumer.close()

    return read


def _check(left: int) -> None:
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged")
