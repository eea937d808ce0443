"""SIGKILL under transactional load, with readers of committed data: each transaction is seen whole, once, in
order, or not at all, and what was acknowledged as committed is seen.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import NewTopic, create_topics
from tests.peers.test_transactions import ours
from tests.peers.test_transactions_kill import PARTITIONS, Work, check

PRODUCERS = 2
WAIT_SECONDS = 120.0


class Reader(threading.Thread):
    """*Its results are read after `join`.* librdkafka, which reads committed data through all the kills."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.servers, self.topic = servers, topic
        self.found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
        self.until: list[int] | None = None

    def run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
        deadline = time.monotonic() + 10 * WAIT_SECONDS
        while time.monotonic() < deadline and not self.done():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found[message.partition()].append((message.offset(), message.value()))
        consumer.close()

    def done(self) -> bool:
        """Whether as much has come as there is."""
        return self.until is not None and all(
            len(self.found[number]) >= count for number, count in enumerate(self.until)
        )


def rounds(path: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    settings = {"log.segment.bytes": 100_000, "log.retention.ms": -1}
    with start_broker(settings, data_dir=path) as broker:
        servers = broker.bootstrap_servers
        works = [
            Work(servers, f"killed-{number}", random.Random(seed + number)) for number in range(PRODUCERS)
        ]
        create_topics(servers, [NewTopic(work.topic, PARTITIONS) for work in works])
        readers = [Reader(servers, work.topic) for work in works]
        for thread in (*works, *readers):
            thread.start()
        for _ in range(kills):
            for work in works:
                work.go_on()
            rng.choice(works).come_to(rng.randrange(60))  # anywhere in a transaction
            broker.kill()
            broker.start()
        for work in works:
            work.go_on()
            work.stopping.set()
        for work, reader in zip(works, readers, strict=True):
            work.join(WAIT_SECONDS)
            assert work.unexpected == []
            assert not work.is_alive()
            check(servers, work.topic, work.outcomes)
            committed = [ours(servers, work.topic, number) for number in range(PARTITIONS)]
            reader.until = [len(values) for values in committed]
            reader.join(WAIT_SECONDS)
            assert [[value for _, value in reader.found[number]] for number in range(PARTITIONS)] == committed


@pytest.mark.long("brokers that are killed many times")
def test_a_killed_broker_loses_no_transaction_and_shows_none_twice(tmp_path: Path) -> None:
    rounds(tmp_path, 1, 3)


@pytest.mark.soak
def test_the_same_two_hundred_times(tmp_path: Path) -> None:
    rounds(tmp_path, 20261123, 200)
