"""Brokers of one cluster, and its ZooKeeper, that are killed, stopped and restarted under an idempotent
producer: every acknowledged record is there, once.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from broker.embedded import EmbeddedCluster, start_cluster
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.zookeeper import until

RECORDS_OF_A_ROUND = 300
PARTITIONS = 4


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3, {"auto.create.topics.enable": False}) as running:
        yield running


class Load:
    """An idempotent producer, and what it was told."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.acknowledged: dict[str, list[bytes]] = {}
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 3000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 1,
            }
        )
        self._sent = 0

    def make_topic(self, name: str) -> None:
        """Asked for until it is there: an answer may be lost with the broker that was to give it."""
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)], request_timeout=5)
        until(lambda: name in self._admin.list_topics(timeout=10).topics or self._again(name), seconds=60)
        self.acknowledged[name] = []

    def _again(self, name: str) -> bool:
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)], request_timeout=5)
        time.sleep(0.5)
        return False

    def send(self, count: int) -> None:
        """So many records, to all topics and partitions in turn."""
        for _ in range(count):
            self._sent += 1
            for name in self.acknowledged:
                self._producer.produce(
                    name, b"%d" % self._sent, partition=self._sent % PARTITIONS, on_delivery=self._told
                )
            self._producer.poll(0)
            time.sleep(0.002)

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def _told(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged[message.topic() or ""].append(message.value() or b"")


def disturb(cluster: EmbeddedCluster, chance: random.Random, load: Load) -> None:
    """One of the brokers, or ZooKeeper, goes away while records are sent, and comes back."""
    victim = cluster.brokers[chance.choice(list(cluster.brokers))]
    what = chance.choice(["kill", "restart", "stop", "zookeeper"])
    if what == "kill":
        victim.kill()
        load.send(RECORDS_OF_A_ROUND)
        victim.restart()
    elif what == "restart":
        load.send(RECORDS_OF_A_ROUND // 2)
        victim.restart()
        load.send(RECORDS_OF_A_ROUND // 2)
    elif what == "stop":
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            load.send(RECORDS_OF_A_ROUND)
            time.sleep(chance.choice([0.0, 5.0]))  # as long as its session lasts, and for longer
        finally:
            os.kill(victim.pid, signal.SIGCONT)
    else:
        cluster.zookeeper.kill()
        load.send(RECORDS_OF_A_ROUND)
        cluster.zookeeper.start()


def end_of(cluster: EmbeddedCluster, topic: str, partition: int) -> int:
    """Where the partition ends."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        return int(end)
    finally:
        consumer.close()


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_every_acknowledged_record_is_there_once(cluster: EmbeddedCluster, rounds: int) -> None:
    chance, load = random.Random(rounds), Load(cluster)
    for round_ in range(rounds):
        if round_ < 20:
            load.make_topic(f"t-{round_}")
        disturb(cluster, chance, load)
    load.finish()
    reader = next(each for each in CLIENTS if each.name == "confluent-kafka")
    for name, wanted in load.acknowledged.items():
        found: Counter[bytes] = Counter()
        for partition in range(PARTITIONS):
            count = sum(int(value) % PARTITIONS == partition for value in wanted)
            assert end_of(cluster, name, partition) == count
            read = reader.consume(cluster.bootstrap_servers, name, partition, 0, count)
            found.update(message.value for message in read if message.value is not None)
        assert found == Counter(wanted)
