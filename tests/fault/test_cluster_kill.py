"""Brokers of one cluster, and its ZooKeeper, that are killed, stopped and restarted under idempotent
producers that make topics meanwhile: each acknowledged record is there, once, and each acknowledged topic.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from tests.support.cluster_faults import LONG_SESSIONS, end_session, miss
from tests.support.stopping import stopped
from tests.support.until import until

BROKERS = 3
PARTITIONS = 4
ROUNDS_WITH_TOPICS, SOAK_ROUNDS = 20, 100
SHORT_SECONDS, LONG_SECONDS = 1.0, 5.0
"""How long something is away in a soak: sessions with ZooKeeper last for 4 s there."""

WITHOUT_ZOOKEEPER = 30
"""So many records are acknowledged to each producer while ZooKeeper is away."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with start_cluster(BROKERS, {"auto.create.topics.enable": False, **request.param}) as running:
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
        self.count = 0
        """How often."""
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

    def go_on(self, topic: str, over: threading.Event) -> None:
        """Send records to all topics in turn until it is ``over`` and ``topic`` is made, if it is not yet."""
        making = None if topic in self.acknowledged else self._ask_for(topic)
        while making is not None or not over.is_set():
            if making is not None and making.done():
                making = self._outcome(topic, making)
            self._send()

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def check_topics(self, cluster: EmbeddedCluster) -> None:
        """Those that were acknowledged are there, whole, whichever broker is asked."""
        for broker in cluster.brokers.values():
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            for topic in self.acknowledged:
                until(partial(_is_led, admin, topic))

    def _send(self) -> None:
        topics = list(self.acknowledged)
        if topics:
            self._sent += 1
            topic, partition = topics[self._sent % len(topics)], self._sent % PARTITIONS
            self._producer.produce(
                topic, b"%d" % self._sent, partition=partition, on_delivery=self._delivered
            )
            self._producer.poll(0)
        time.sleep(0.005)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged[message.topic() or ""][message.partition() or 0, message.value() or b""] += 1
        self.count += 1

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


def _is_led(admin: AdminClient, topic: str) -> bool:
    known = admin.list_topics(topic, timeout=60).topics[topic]
    return sum(each.leader >= 0 for each in known.partitions.values()) == PARTITIONS


def kill_broker(cluster: EmbeddedCluster, victim: int, away: Away) -> None:
    cluster.brokers[victim].kill()
    away(cluster, victim)
    cluster.brokers[victim].restart()


def restart_broker(cluster: EmbeddedCluster, victim: int, _away: Away) -> None:
    cluster.brokers[victim].restart()


def stop_broker(cluster: EmbeddedCluster, victim: int, away: Away) -> None:
    with stopped(cluster.brokers[victim].pid):
        away(cluster, victim)


def kill_zookeeper(cluster: EmbeddedCluster, victim: int, away: Away) -> None:
    cluster.zookeeper.kill()
    away(cluster, victim)
    cluster.zookeeper.start()


def stop_zookeeper(cluster: EmbeddedCluster, victim: int, away: Away) -> None:
    with stopped(cluster.zookeeper.pid):
        away(cluster, victim)


def end_all_sessions(cluster: EmbeddedCluster, _victim: int, _away: Away) -> None:
    """What follows when ZooKeeper was away for long."""
    for number in cluster.brokers:
        end_session(cluster, number)


Away = Callable[[EmbeddedCluster, int], None]
"""What passes before a broker, or ZooKeeper, comes back."""

Disturbance = Callable[[EmbeddedCluster, int, Away], None]

OF_BROKERS: list[Disturbance] = [kill_broker, stop_broker, restart_broker]
OF_ZOOKEEPER: list[Disturbance] = [kill_zookeeper, stop_zookeeper, end_all_sessions]


def until_more_is_acknowledged(works: list[Work]) -> None:
    """Producers go on without ZooKeeper."""
    before = [work.count for work in works]
    until(lambda: all(w.count >= old + WITHOUT_ZOOKEEPER for w, old in zip(works, before, strict=True)))


def everything(cluster: EmbeddedCluster, topics: list[str]) -> dict[str, Counter[tuple[int, bytes]]]:
    """What readers find in the topics, and that it ends there: by topic, partition and value, how often."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    found: dict[str, Counter[tuple[int, bytes]]] = {topic: Counter() for topic in topics}
    try:
        wanted = 0
        starts = []
        for topic in topics:
            for number in range(PARTITIONS):
                start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
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


def each_once(works: list[Work]) -> Iterator[tuple[Disturbance, Away]]:
    """Disturbances of each kind, that last until something has happened."""
    yield from ((disturb, miss) for disturb in OF_BROKERS)
    yield from ((disturb, lambda *_: until_more_is_acknowledged(works)) for disturb in OF_ZOOKEEPER)


def drawn(chance: random.Random) -> Iterator[tuple[Disturbance, Away]]:
    """Disturbances of all kinds, without end; sessions end by themselves, or do not."""
    while True:
        seconds = chance.choice([SHORT_SECONDS, LONG_SECONDS])
        yield (
            chance.choice(OF_BROKERS + OF_ZOOKEEPER[:2]),
            lambda *_, seconds=seconds: time.sleep(seconds),  # type: ignore[misc]
        )


@pytest.mark.long("several brokers and their ZooKeeper")
@pytest.mark.parametrize(
    ("cluster", "soak"),
    [(LONG_SESSIONS, False), pytest.param({}, True, marks=pytest.mark.soak)],
    indirect=["cluster"],
    ids=["each once", "soak"],
)
def test_every_acknowledged_record_is_there_once(cluster: EmbeddedCluster, soak: bool) -> None:
    chance = random.Random(7)
    works = [Work(cluster, number) for number in cluster.brokers]
    disturbances = list(islice(drawn(chance), SOAK_ROUNDS) if soak else each_once(works))
    with ThreadPoolExecutor(len(works)) as pool:
        for round_, (disturb, away) in enumerate(disturbances):
            over = threading.Event()
            named = min(round_, ROUNDS_WITH_TOPICS - 1)
            going = [pool.submit(work.go_on, f"{work.name}-{named}", over) for work in works]
            try:
                disturb(cluster, chance.choice(list(cluster.brokers)), away)
            finally:
                over.set()
            for each in going:
                each.result(120)
    for work in works:
        work.finish()
        work.check_topics(cluster)
        assert work.failures == []
        assert everything(cluster, list(work.acknowledged)) == work.acknowledged
        assert len(work.acknowledged) == min(len(disturbances), ROUNDS_WITH_TOPICS)
