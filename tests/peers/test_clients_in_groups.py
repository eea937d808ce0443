"""kafkajs, franz-go and Java 2.8 in groups and transactions at our broker."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import NewTopic, Producer, create_topics
from tests.peers.test_transactions import ours
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.processes import CLIENTS, Client, Running
from tests.support.until import until

pytestmark = pytest.mark.peers

PARTITIONS = 4
ALL = list(range(PARTITIONS))
SECONDS = 90.0


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    settings = {
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    with start_broker(settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    try:
        found.command()
    except NotAvailable as e:
        pytest.skip(f"{found.name} is not here: {e}")
    return found


@pytest.fixture
def started(client: Client, tmp_path: Path) -> Iterator[list[Running]]:
    """The processes of a test, which end with it."""
    running: list[Running] = []
    yield running
    for one in running:
        one.send_signal(signal.SIGCONT)
        one.kill()


def topic_of(servers: str, name: str, values: int, partitions: int = PARTITIONS) -> str:
    create_topics(servers, [NewTopic(name, partitions)])
    write(servers, name, range(values), partitions)
    return name


def write(servers: str, topic: str, values: range, partitions: int = PARTITIONS) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in values:
            producer.send(topic, b"%d" % number, partition=number % partitions)


def shared(*members: Running) -> list[list[int]] | None:
    """What each member holds once each partition has one holder and the shares are even."""
    held = [member.held() for member in members]
    even = max(map(len, held)) - min(map(len, held)) <= 1
    return held if even and sorted(n for share in held for n in share) == ALL else None


def test_members_join_leave_hang_and_are_killed(
    servers: str, client: Client, started: list[Running], tmp_path: Path
) -> None:
    group = f"members-{client.name.replace(' ', '')}"
    topic = topic_of(servers, group, 100)

    def member() -> Running:
        started.append(Running(client, tmp_path / "log", "member", servers, group, topic))
        return started[-1]

    first, second = member(), member()
    until(lambda: shared(first, second), seconds=SECONDS)
    second.kill()
    until(lambda: shared(first), seconds=SECONDS)
    write(servers, topic, range(100, 200))
    third = member()
    until(lambda: shared(first, third), seconds=SECONDS)
    first.send_signal(signal.SIGSTOP)
    until(lambda: shared(third), seconds=SECONDS)
    write(servers, topic, range(200, 300))
    first.send_signal(signal.SIGCONT)
    until(lambda: shared(first, third), seconds=SECONDS)
    third.leave()
    until(lambda: shared(first), seconds=SECONDS)
    write(servers, topic, range(300, 400))

    def values() -> set[int]:
        return {int(words[2]) for one in started for words in one.said("read")}

    until(lambda: len(values()) == 400, seconds=SECONDS)
    assert values() == set(range(400))
    first.leave()


def test_what_is_copied_in_transactions_arrives_once_though_the_copier_is_killed(
    servers: str, client: Client, started: list[Running], tmp_path: Path
) -> None:
    group = f"copier-{client.name.replace(' ', '')}"
    source, target = topic_of(servers, f"{group}-from", 2_000, 2), topic_of(servers, f"{group}-to", 0, 2)

    def copier() -> Running:
        words = ("copy", servers, group, source, target, group)
        started.append(Running(client, tmp_path / "log", *words))
        return started[-1]

    def has_copied(one: Running, count: int) -> bool:
        return any(int(words[0]) >= count for words in one.said("copied"))

    def found() -> int:
        return sum(len(ours(servers, target, partition)) for partition in range(2))

    for count in (100, 200):
        one = copier()
        until(partial(has_copied, one, count), seconds=SECONDS)
        one.kill()
    last = copier()
    until(lambda: found() >= 2_000, seconds=SECONDS)
    time.sleep(0.3)  # what would be copied twice
    last.leave()
    for partition in range(2):
        assert ours(servers, target, partition) == [b"%d" % n for n in range(partition, 2_000, 2)]


def test_an_admin_makes_topics_describes_groups_and_deletes_records(
    servers: str, client: Client, started: list[Running], tmp_path: Path
) -> None:
    group = f"admin-{client.name.replace(' ', '')}"
    topic = topic_of(servers, group, 10, 2)
    member = Running(client, tmp_path / "log", "member", servers, group, topic)
    started.append(member)
    until(lambda: len(member.said("read")) == 10, seconds=SECONDS)
    admin = Running(client, tmp_path / "log", "admin", servers, topic, group)
    started.append(admin)
    admin.wait()
    told = [line.split() for line in admin.lines]
    assert told == [["partitions", "3"], ["group", "Stable", "1"], ["start", "3"]]
