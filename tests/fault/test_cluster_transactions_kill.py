"""Brokers of one cluster that are killed, stopped and restarted under transactions over all of them: each
transaction is seen whole, once, in order, or not at all, and what was acknowledged as committed is seen.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from pyspark_kafkalog import NewTopic, create_topics
from tests.peers.test_transactions_kill import PARTITIONS, Work, check
from tests.support.cluster_faults import LONG_SESSIONS, end_session, miss
from tests.support.stopping import stopped

PRODUCERS = 3
WAIT_SECONDS = 120.0
CALLS = 60
"""About three transactions: anywhere in one of them something happens to a broker."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with start_cluster(3, {"auto.create.topics.enable": False, **request.param}) as running:
        yield running


def disturb(cluster: EmbeddedCluster, chance: random.Random) -> None:
    """A broker goes away for a while: until all others miss it, or not so long."""
    number = chance.choice(list(cluster.brokers))
    victim, is_missed = cluster.brokers[number], chance.choice([False, True])
    what = chance.choice(["kill", "restart", "stop"])
    if what == "kill":
        victim.kill()
        (miss if is_missed else end_session)(cluster, number)  # it does not start beside its own session
        victim.restart()
    elif what == "restart":
        victim.restart()
    else:
        with stopped(victim.pid):
            if is_missed:
                miss(cluster, number)


def disturb_for_seconds(cluster: EmbeddedCluster, chance: random.Random) -> None:
    """The same by the clock: for longer than its session lasts, or not."""
    victim = cluster.brokers[chance.choice(list(cluster.brokers))]
    away = chance.choice([0.0, 0.5, 5.0])
    what = chance.choice(["kill", "restart", "stop"])
    if what == "kill":
        victim.kill()
        time.sleep(away)
        victim.restart()
    elif what == "restart":
        victim.restart()
    else:
        with stopped(victim.pid):
            time.sleep(away)


@pytest.mark.long("brokers that are killed many times")
@pytest.mark.parametrize(
    ("cluster", "disturbed", "rounds"),
    [(LONG_SESSIONS, disturb, 2), pytest.param({}, disturb_for_seconds, 100, marks=pytest.mark.soak)],
    indirect=["cluster"],
    ids=["few", "soak"],
)
def test_transactions_over_brokers_that_come_and_go(
    cluster: EmbeddedCluster, disturbed: Callable[[EmbeddedCluster, random.Random], None], rounds: int
) -> None:
    chance, servers = random.Random(rounds), cluster.bootstrap_servers
    works = [Work(servers, f"spread-{n}", random.Random(rounds + n)) for n in range(PRODUCERS)]
    create_topics(servers, [NewTopic(work.topic, PARTITIONS) for work in works])
    for work in works:
        work.start()
    for _ in range(rounds):
        for work in works:
            work.go_on()
        chance.choice(works).come_to(chance.randrange(CALLS))
        disturbed(cluster, chance)
    for work in works:
        work.go_on()
        work.stopping.set()
    for work in works:
        work.join(WAIT_SECONDS)
        assert work.unexpected == []
        assert not work.is_alive()
        check(servers, work.topic, work.outcomes)
