"""Streams under random topics, partitions, records, stops and crashes: checklist S78 and S79."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_partitions, delete_topics
from tests.support.datasource.spark_stream import Checkpoint, Died, Run
from tests.support.datasource.spark_topics import Topic
from tests.support.protocol.raw_client import RawClient

Start = Callable[..., Run]
pytestmark = [
    pytest.mark.long("a query beside topics that come and go"),
    pytest.mark.usefixtures("standing_clock"),
]

# A task waits so long for records of a topic that was made anew, and shorter.
PATIENCE = {"kafkaConsumer.pollTimeoutMs": "1000", "kafka.fetch.max.wait.ms": "50"}


class Stress:
    """*Not thread-safe.* A query on ``<prefix>-.*`` and what is done to it; every value is sent once."""

    def __init__(
        self, rng: random.Random, begin: Callable[[], Run], client: RawClient, servers: str, prefix: str
    ) -> None:
        self.rng, self._begin, self._client, self._prefix = rng, begin, client, prefix
        self.servers = servers
        self.partitions: dict[str, int] = {}
        self.sent: dict[str, list[int]] = {}
        self.read: list[int] = []
        self.steps: list[str] = []
        self._next = 0
        self.run = begin()

    def _some(self) -> str:
        return self.rng.choice(sorted(self.partitions))

    def step(self, kinds: list[str]) -> None:
        kind = self.rng.choice(kinds) if self.partitions else "create"
        self.steps.append(kind)
        getattr(self, kind)()

    def create(self, name: str = "") -> None:
        name = name or f"{self._prefix}-{self.rng.randrange(5)}"
        if name not in self.partitions:
            self.partitions[name] = self.rng.randint(1, 3)
            assert self._client.create_topic(name, self.partitions[name]).error_code == 0

    def recreate(self) -> None:
        self.create(self.delete())

    def delete(self) -> str:
        name = self._some()
        delete_topics(self.servers, [name])
        self.sent.pop(name, None)
        del self.partitions[name]
        return name

    def widen(self) -> None:
        name = self._some()
        if self.partitions[name] < 6:
            self.partitions[name] += 1
            create_partitions(self.servers, {name: self.partitions[name]})

    def produce(self) -> None:
        name = self._some()
        values = list(range(self._next, self._next + self.rng.randint(1, 9)))
        self._next = values[-1] + 1
        Topic(self._client, name).add(*values, partition=self.rng.randrange(self.partitions[name]))
        self.sent.setdefault(name, []).extend(values)

    def batch(self) -> None:
        found = self.run.batch()
        self.read += found.values if found is not None else []

    def crash(self) -> None:
        try:
            found = self.run.batch(dies=self.rng.choice(["planning", "running", "committing"]))
            self.read += found.values if found is not None else []
        except Died:
            self.restart()

    def restart(self) -> None:
        self.run.reader.stop()
        self.run = self._begin()

    def finish(self) -> None:
        """Read to the end: nothing twice, and everything in the topics that are there, recreated or not."""
        for found in self.run.batches(200):
            self.read += found.values
        assert len(set(self.read)) == len(self.read), self.steps
        stayed = {v for values in self.sent.values() for v in values}
        assert stayed - set(self.read) == set(), self.steps
        assert set(self.read) <= set(range(self._next)), self.steps


def stressed(
    seed: int,
    steps: int,
    start: Start,
    client: RawClient,
    broker: EmbeddedBroker,
    name: str,
    kinds: list[str],
    **options: str,
) -> None:
    rng, checkpoint = random.Random(seed), Checkpoint()
    limit = {"maxOffsetsPerTrigger": "7"} if seed % 2 else {}
    more = {"minPartitions": "5"} if seed % 3 == 0 else {}

    def begin() -> Run:
        return start(
            checkpoint, subscribePattern=f"{name}-.*", **PATIENCE,
            **limit, **more, **options,
        )  # fmt: skip

    stress = Stress(rng, begin, client, broker.bootstrap_servers, name)
    for _ in range(steps):
        stress.step(kinds)
    stress.finish()


GROWING = ["create", "widen", "produce", "produce", "produce", "batch", "batch", "restart", "crash"]
SHRINKING = [*GROWING, "delete", "recreate"]


@pytest.mark.parametrize("seed", range(3))
def test_s78_topics_partitions_and_records_come_while_the_query_stops_and_starts(
    seed: int, start: Start, client: RawClient, running_broker: EmbeddedBroker, topic_name: str
) -> None:
    stressed(seed, 60, start, client, running_broker, topic_name, GROWING)


@pytest.mark.parametrize("seed", range(3))
def test_s79_topics_are_deleted_and_recreated_and_the_query_never_fails(
    seed: int, start: Start, client: RawClient, running_broker: EmbeddedBroker, topic_name: str
) -> None:
    stressed(seed, 40, start, client, running_broker, topic_name, SHRINKING, failOnDataLoss="false")


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(100, 140))
@pytest.mark.parametrize("deletes", [False, True])
def test_many_rounds_of_both(
    seed: int, deletes: bool, start: Start, client: RawClient, running_broker: EmbeddedBroker, topic_name: str
) -> None:
    kinds = SHRINKING if deletes else GROWING
    options = {"failOnDataLoss": "false"} if deletes else {}
    stressed(seed, 400, start, client, running_broker, topic_name, kinds, **options)
