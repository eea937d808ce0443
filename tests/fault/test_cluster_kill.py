"""Brokers of one cluster, and its ZooKeeper, that are killed, stopped and restarted under idempotent
producers that make topics meanwhile: each acknowledged record is there, once, and each acknowledged topic.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from broker.embedded import EmbeddedBroker, EmbeddedCluster, start_cluster
from tests.support.zookeeper import until

BROKERS = 3
RECORDS_OF_A_ROUND = 300
PARTITIONS = 4
ROUNDS_WITH_TOPICS = 20
PAST_SESSIONS_SECONDS = 5.0
"""Sessions with ZooKeeper last for 4 s."""


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(BROKERS, {"auto.create.topics.enable": False}) as running:
        yield running


class Work:
    """*Not thread-safe: one thread at a time.* An idempotent producer that makes topics for itself, and what
    was acknowledged to it. It asks one of the brokers first.
    """

    def __init__(self, cluster: EmbeddedCluster, broker: int) -> None:
        order = sorted(cluster.brokers, key=lambda number: number != broker)
        servers = ",".join(cluster.brokers[number].bootstrap_servers for number in order)
        self.name = f"at-{broker}"
        self.acknowledged: dict[str, Counter[tuple[int, bytes]]] = {}
        """By topic: how often each value was acknowledged for a partition."""
        self.failures: list[str] = []
        self._sent = 0
        self._admin = AdminClient({"bootstrap.servers": servers, "socket.timeout.ms": 3000})
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 3000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 1,
            }
        )

    def go_on(self, topic: str | None) -> None:
        """Send a round's records to all topics in turn, while ``topic`` is made; until both are done."""
        making = None if topic is None else self._ask_for(topic)
        for number in range(RECORDS_OF_A_ROUND):
            if topic is not None and making is not None and making.done():
                making = self._outcome(topic, making)
            self._send(number)
        while topic is not None and making is not None:
            if making.done():
                making = self._outcome(topic, making)
            time.sleep(0.01)

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def check_topics(self) -> None:
        """Those that were acknowledged are there, whole."""
        for topic in self.acknowledged:
            until(lambda topic=topic: self._leaders(topic) == PARTITIONS, seconds=30)  # type: ignore[misc]

    def _send(self, number: int) -> None:
        topics = list(self.acknowledged)
        if topics:
            self._sent += 1
            self._producer.produce(
                topics[number % len(topics)],
                b"%d" % self._sent,
                partition=self._sent % PARTITIONS,
                on_delivery=self._delivered,
            )
            self._producer.poll(0)
        time.sleep(0.002)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged[message.topic() or ""][message.partition() or 0, message.value() or b""] += 1

    def _ask_for(self, topic: str) -> Future[None]:
        made: Future[None] = self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=5)[
            topic
        ]
        return made

    def _outcome(self, topic: str, making: Future[None]) -> Future[None] | None:
        """None once it is made; its answer may have been lost with the broker that was to give it."""
        try:
            making.result()
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                time.sleep(0.1)
                return self._ask_for(topic)
        self.acknowledged[topic] = Counter()
        return None

    def _leaders(self, topic: str) -> int:
        known = self._admin.list_topics(topic, timeout=10).topics[topic]
        return sum(each.leader >= 0 for each in known.partitions.values())


Away = Callable[[EmbeddedCluster, random.Random], AbstractContextManager[None]]


@contextmanager
def broker_killed(cluster: EmbeddedCluster, chance: random.Random) -> Iterator[None]:
    victim = one_of(cluster, chance)
    victim.kill()
    yield
    victim.restart()


@contextmanager
def broker_restarted(cluster: EmbeddedCluster, chance: random.Random) -> Iterator[None]:
    yield
    one_of(cluster, chance).restart()


@contextmanager
def broker_stopped(cluster: EmbeddedCluster, chance: random.Random) -> Iterator[None]:
    with stopped(one_of(cluster, chance).pid):
        yield


@contextmanager
def zookeeper_killed(cluster: EmbeddedCluster, chance: random.Random) -> Iterator[None]:
    cluster.zookeeper.kill()
    yield
    cluster.zookeeper.start()


@contextmanager
def zookeeper_stopped(cluster: EmbeddedCluster, chance: random.Random) -> Iterator[None]:
    with stopped(cluster.zookeeper.pid):
        yield


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def one_of(cluster: EmbeddedCluster, chance: random.Random) -> EmbeddedBroker:
    return cluster.brokers[chance.choice(list(cluster.brokers))]


KINDS: list[Away] = [broker_killed, broker_stopped, zookeeper_killed, broker_restarted, zookeeper_stopped]


def everything(cluster: EmbeddedCluster, topics: list[str]) -> dict[str, Counter[tuple[int, bytes]]]:
    """What readers find in the topics, and that it ends there: by topic, partition and value, how often."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    found: dict[str, Counter[tuple[int, bytes]]] = {topic: Counter() for topic in topics}
    try:
        wanted = 0
        starts = []
        for topic in topics:
            for number in range(PARTITIONS):
                start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
                starts.append(TopicPartition(topic, number, start))
                wanted += end - start
        consumer.assign(starts)
        while wanted:
            for message in consumer.consume(min(wanted, 1000), 30):
                assert message.error() is None, message.error()
                found[message.topic()][message.partition(), message.value()] += 1
                wanted -= 1
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("rounds", [len(KINDS), pytest.param(100, marks=pytest.mark.soak)])
def test_every_acknowledged_record_is_there_once(cluster: EmbeddedCluster, rounds: int) -> None:
    chance = random.Random(rounds)
    works = [Work(cluster, number) for number in cluster.brokers]
    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(lambda work: work.go_on(f"{work.name}-first"), works))
        for round_ in range(rounds):
            away = KINDS[round_] if rounds == len(KINDS) else chance.choice(KINDS)
            with away(cluster, chance):
                named = round_ < ROUNDS_WITH_TOPICS
                going = [pool.submit(w.go_on, f"{w.name}-{round_}" if named else None) for w in works]
                # As long as sessions with ZooKeeper last, or longer.
                time.sleep(PAST_SESSIONS_SECONDS if rounds == len(KINDS) else chance.choice([1.0, 6.0]))
            for each in going:
                each.result(120)
    for work in works:
        work.finish()
        work.check_topics()
        assert work.failures == []
        assert everything(cluster, list(work.acknowledged)) == work.acknowledged
        assert len(work.acknowledged) == 1 + min(rounds, ROUNDS_WITH_TOPICS)
