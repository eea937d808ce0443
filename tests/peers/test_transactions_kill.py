"""Apache Kafka killed and started again under transactions: each is seen whole, once, or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import KafkaError, RequestTimedOut, TransactionAbortable
from pyspark_kafkalog.types import TopicPartition
from tests.peers.test_transactions import ours, theirs
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.until import until

KILLS = 2
PARTITIONS = 2
SEED = 20261122
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


@pytest.fixture
def mortal_kafka(kafka_jars: Path, tmp_path: Path) -> Iterator[ApacheKafka]:
    """A broker of this test's own, which its controller gives up soon: until then it is not let in again."""
    soon = {"broker_session_timeout_ms": "1500", "broker_heartbeat_interval_ms": "300"}
    kafka = ApacheKafka(kafka_jars, tmp_path / "kafka", **soon).start()
    yield kafka
    kafka.stop()


class Work(threading.Thread):
    """*Its results are read after `join`.* One transaction after the other, by the rules of the manual."""

    def __init__(self, servers: str, name: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.servers, self.topic, self.rng = servers, name, rng
        self.outcomes: list[str] = []
        self.failures: list[KafkaError] = []
        self.unexpected: list[BaseException] = []
        self.stopping = threading.Event()
        self.calls = 0
        """How often it has sent or begun to end a transaction."""

    def run(self) -> None:
        out = self.producer()
        try:
            while not self.stopping.is_set():
                outcome = self.transaction(out, len(self.outcomes))
                self.outcomes.append(outcome)
                if outcome == UNKNOWN:
                    out.close(1)
                    out = self.producer()
        except BaseException as e:
            self.unexpected.append(e)
        finally:
            out.close()

    def go_on(self) -> None:
        """Wait for ten more transactions."""
        done = len(self.outcomes)
        until(lambda: len(self.outcomes) > done + 10 or not self.is_alive())

    def come_to(self, calls: int) -> None:
        """Wait until it has made so many more calls: that is somewhere in a transaction."""
        done = self.calls
        until(lambda: self.calls >= done + calls or not self.is_alive())

    def producer(self) -> Producer:
        out = Producer(
            {
                "bootstrap.servers": self.servers, "transactional.id": self.topic, "linger.ms": 1,
                "batch.size": 300, "request.timeout.ms": 3000, "delivery.timeout.ms": 20_000,
                "max.block.ms": 30_000, "retry.backoff.ms": 20,
            }
        )  # fmt: skip
        again(out.init_transactions)
        return out

    def transaction(self, out: Producer, number: int) -> str:
        """How transaction ``number`` ended, as far as its producer knows."""
        try:
            out.begin_transaction()
            try:
                for i in range(self.rng.randrange(1, 30)):
                    out.send(self.topic, b"%d %d" % (number, i), partition=i % PARTITIONS)
                    self.calls += 1
                offset = CommittedOffset(number, -1, f"transaction {number}")
                out.send_offsets_to_transaction({TopicPartition(self.topic, 0): offset}, self.topic)
                self.calls += 1
                if self.rng.random() < 0.3:
                    again(out.abort_transaction)
                    return ABORTED
                again(out.commit_transaction)
                return COMMITTED
            except TransactionAbortable as e:
                self.failures.append(e)
                again(out.abort_transaction)
                return ABORTED
        except KafkaError as e:
            self.failures.append(e)
            return UNKNOWN


def again(call: Callable[[], None]) -> None:
    """Call it until it has an answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except RequestTimedOut:
            if time.monotonic() > deadline:
                raise


def test_killing_kafka_leaves_every_transaction_whole_or_not_there(mortal_kafka: ApacheKafka) -> None:
    servers, topic = mortal_kafka.bootstrap_servers, "killed"
    create_topics(servers, [NewTopic(topic, PARTITIONS)])
    rng = random.Random(SEED)
    work = Work(servers, topic, rng)
    work.start()
    for _ in range(KILLS):
        work.go_on()
        work.come_to(rng.randrange(60))
        mortal_kafka.kill()
        mortal_kafka.start()
    work.go_on()
    work.stopping.set()
    work.join(120)
    assert work.unexpected == []
    assert not work.is_alive()
    check(servers, topic, work.outcomes)


def check(servers: str, topic: str, outcomes: list[str]) -> None:
    assert COMMITTED in outcomes
    assert ABORTED in outcomes
    found = [ours(servers, topic, partition) for partition in range(PARTITIONS)]
    assert found == [theirs(servers, topic, partition) for partition in range(PARTITIONS)]
    seen: dict[int, list[int]] = {}
    for values in found:
        pairs = [tuple(map(int, value.split())) for value in values if value is not None]
        assert pairs == sorted(set(pairs)), "in order, and none twice"
        for number, i in pairs:
            seen.setdefault(number, []).append(i)
    for number, outcome in enumerate(outcomes):
        if outcome == COMMITTED:
            assert number in seen
        elif outcome == ABORTED:
            assert number not in seen
        assert sorted(seen.get(number, [])) == list(range(len(seen.get(number, [])))), "whole"
    with closing(Cluster(ClientConfig(bootstrap_servers=servers))) as cluster:
        tp = TopicPartition(topic, 0)
        last = max(seen)
        assert committed_offsets(cluster, topic, [tp], stable=True)[tp].metadata == f"transaction {last}"
