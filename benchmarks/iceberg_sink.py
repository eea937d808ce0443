"""A load to Iceberg, beside Kafka Connect's Iceberg sink on the same broker.

Both read the same topic of two partitions, in two tasks, and write Parquet with snappy into new tables of a
catalog in SQLite. The load's processes start in each round. The sink's worker has Connect's own options of
Java, and runs already. Its tasks learn of a commit only between polls, and the poll at the end of a topic
waits for up to a minute; so a round is from a new sink to the first commit that has three quarters of the
records, and what all would take is computed from that. It commits every two seconds (five minutes by
default), and turns each record's bytes, topic, partition, offset and timestamp into columns by Connect's
transformations; the load has key and timestamp type as well.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import psutil
from confluent_kafka import Consumer, TopicPartition

from benchmarks.direct_loads import PARTITIONS, PLACED, Loads
from benchmarks.harness import Row, compare, cost, in_turn
from kafkalog_broker.embedded import start_broker
from tests.support.foreign.kafka_connect import AS_SHIPPED, IcebergSinks

PEER = "Kafka Connect's Iceberg sink"
_COMMIT_EVERY_MS = 2_000
_numbers = itertools.count()


def run(rounds: int = 3) -> list[Row]:
    """Three minutes."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(start_broker({"log.retention.ms": -1}))
        loads = Loads(broker, directory)
        topic = loads.topic(100, PLACED)
        records = _records_of(topic, broker.bootstrap_servers)
        sinks = IcebergSinks(broker.bootstrap_servers, directory / "connect", AS_SHIPPED)
        stack.callback(sinks.stop)
        used: dict[str, list[float]] = {"load": [], PEER: []}

        def measured(name: str, call: Callable[[], float], seconds: Callable[[], float]) -> float:
            """The time for all records; ``call`` returns the share of them that it got through."""
            before, began = seconds(), time.perf_counter()
            share = call()
            took = (time.perf_counter() - began) / share
            used[name].append((seconds() - before) / share)
            return took

        def load() -> float:
            loads.iceberg(topic)
            return 1.0

        def sink() -> float:
            return _sink(topic, records, sinks)

        contestants: dict[str, Callable[[], float]] = {
            "load": partial(measured, "load", load, _our_seconds),
            PEER: partial(measured, PEER, sink, sinks.processor_seconds),
        }
        took = in_turn(contestants, min(rounds, 3), PLACED)
        question = f"load of {PLACED / 1e6:g} M x 100 B to Iceberg"
        ours, peers = (median(seconds[1:]) for seconds in used.values())  # the first round warms up
        return [
            compare(question, took["load"], took[PEER], "Mrows/s"),
            cost(f"{question}: processor time", ours, peers, "s", note=f"peer: {PEER}"),
        ]


def _records_of(topic: str, servers: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "measured"})
    places = (TopicPartition(topic, number) for number in range(PARTITIONS))
    records = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.close()
    return records


def _our_seconds() -> float:
    """The processor seconds of this process and of those that it has waited for."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _sink(topic: str, records: int, sinks: IcebergSinks) -> float:
    """The share of the records that is in the table when it ends."""
    name = f"sink{next(_numbers)}"
    sinks.begin(name, topic, PARTITIONS, _COMMIT_EVERY_MS, **{"write.parquet.compression-codec": "snappy"})
    while (rows := sinks.rows(name)) < 0.75 * records:
        time.sleep(0.5)
    sinks.end(name)
    return rows / records
