"""Brokers of one cluster that are killed, stopped and restarted under transactions over all of them: each
transaction is seen whole, once, in order, or not at all, and what was acknowledged as committed is seen.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from broker.embedded import EmbeddedBroker, EmbeddedCluster, start_cluster
from pyspark_kafkalog import NewTopic, create_topics
from tests.peers.test_transactions_kill import PARTITIONS, Work, check
from tests.support.stopping import stop_process

PRODUCERS = 3
WAIT_SECONDS = 120.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3, {"auto.create.topics.enable": False}) as running:
        yield running


def disturb(victim: EmbeddedBroker, chance: random.Random) -> None:
    """The broker goes away for a while: for longer than its session lasts, or not."""
    away = chance.choice([0.0, 0.5, 5.0])
    what = chance.choice(["kill", "restart", "stop"])
    if what == "kill":
        victim.kill()
        time.sleep(away)
        victim.restart()
    elif what == "restart":
        victim.restart()
    else:
        stop_process(victim.pid)
        try:
            time.sleep(away)
        finally:
            os.kill(victim.pid, signal.SIGCONT)


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_transactions_over_brokers_that_come_and_go(cluster: EmbeddedCluster, rounds: int) -> None:
    chance, servers = random.Random(rounds), cluster.bootstrap_servers
    works = [Work(servers, f"spread-{n}", random.Random(rounds + n)) for n in range(PRODUCERS)]
    create_topics(servers, [NewTopic(work.topic, PARTITIONS) for work in works])
    for work in works:
        work.start()
    for _ in range(rounds):
        for work in works:
            work.go_on()
        time.sleep(chance.random() / 10)
        disturb(cluster.brokers[chance.choice(list(cluster.brokers))], chance)
    for work in works:
        work.go_on()
        work.stopping.set()
    for work in works:
        work.join(WAIT_SECONDS)
        assert work.unexpected == []
        assert not work.is_alive()
        check(servers, work.topic, work.outcomes)
