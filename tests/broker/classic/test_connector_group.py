"""Three brokers, four consumers, twelve partitions, one ZooKeeper: deaths and returns lose nothing."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.zookeeper_group import range_assign
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import V07Layout
from tests.support.classic.group_consumer import GROUP, TOPIC, Delivery, GroupConsumer
from tests.support.protocol.wire07 import Wire07, fetch, produce
from tests.support.until import until
from tests.support.zookeeper import PATIENT, PATIENT_MS, expire_by_id, expire_owner, patient_session

LAYOUT = V07Layout()
PARTITIONS_OF_A_BROKER = 4
READ_BETWEEN = 150


class Writer:
    """A thread that appends numbered messages to all partitions of the brokers that are there."""

    def __init__(self, brokers: dict[int, EmbeddedBroker]) -> None:
        self.stored: set[str] = set()
        self._brokers, self._stop = brokers, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            for node, broker in self._brokers.items():
                # A broker that dies may or may not have stored it: then nobody asks for it.
                with contextlib.suppress(OSError, AssertionError), Wire07(broker.port) as wire:
                    for partition in range(PARTITIONS_OF_A_BROKER):
                        text = f"{node}-{partition}-{number}"
                        wire.send(produce(TOPIC, partition, encode_set([text.encode()])))
                        if wire.ask(fetch(TOPIC, partition, 0, 1)) is not None:
                            self.stored.add(text)


class Group:
    """The whole scene, and what it should look like."""

    def __init__(self, zookeeper_connect: str, directory: Path) -> None:
        self._connect, self._directory = zookeeper_connect, directory
        self.session = patient_session(zookeeper_connect).start()
        self.brokers = {
            node: start_broker(
                {
                    "listeners": "KAFKA07://127.0.0.1:0", "num.partitions": PARTITIONS_OF_A_BROKER,
                    "log.flush.interval": 1, "node.id": node, "zookeeper.connect": zookeeper_connect,
                    **PATIENT,
                },
                data_dir=directory / f"broker-{node}",
            )
            for node in (1, 2, 3)
        }  # fmt: skip
        self.live_brokers = {1, 2, 3}
        self.all: list[GroupConsumer] = []
        self.live: dict[str, GroupConsumer] = {}
        self.writer = Writer(self.brokers)

    def add(self, name: str) -> None:
        # The one that will be stopped must notice by its own clock that it was away.
        session_ms = 2000 if name == "c" else PATIENT_MS
        self.live[name] = GroupConsumer(self._connect, name, self._directory, session_ms)
        self.all.append(self.live[name])

    def miss(self, path: str) -> None:
        """Have ZooKeeper end the session that owns this znode."""
        expire_owner(self._connect, path)

    def settle(self, after: str) -> None:
        """Wait until the owners are those of the papers' formula, as after what is named."""
        names = [f"{node}-{n}" for node in self.live_brokers for n in range(PARTITIONS_OF_A_BROKER)]
        assigned = range_assign(names, [one.thread for one in self.live.values()])
        expected = {name: thread for thread, mine in assigned.items() for name in mine}
        until(lambda: registries.owners(self.session, LAYOUT, GROUP, TOPIC) == expected)

    def delivered(self) -> set[str]:
        return {delivery.payload for one in self.all for delivery in one.deliveries}

    def read_on(self) -> None:
        """Wait until many more messages were read: what comes next comes in the middle of reading."""
        wanted = len(self.delivered()) + READ_BETWEEN
        until(lambda: len(self.delivered()) >= wanted)

    def close(self) -> None:
        self.writer.stop()
        for consumer in self.all:
            consumer.stop()
        for broker in self.brokers.values():
            broker.stop()
        self.session.close()


@pytest.fixture
def group(zookeeper_connect: str, tmp_path: Path) -> Iterator[Group]:
    group = Group(zookeeper_connect, tmp_path)
    try:
        yield group
    finally:
        group.close()


@pytest.mark.long("a group whose members die and return")
def test_every_message_comes_through_deaths_returns_and_expired_sessions(group: Group) -> None:
    for name in ("a", "b", "c", "d"):
        group.add(name)
    group.settle("four consumers have come")
    group.read_on()
    group.live.pop("b").kill()
    group.miss(LAYOUT.consumer(GROUP, f"{GROUP}_b"))
    group.settle("kill -9 of a consumer")
    group.read_on()
    group.brokers[3]._process.kill()  # type: ignore[union-attr]
    group.miss(LAYOUT.broker(3))
    group.live_brokers.remove(3)
    group.settle("kill -9 of a broker")
    group.read_on()
    group.brokers[3].restart()
    group.live_brokers.add(3)
    group.add("e")
    group.settle("both are back")
    group.read_on()
    before = group.session.read(LAYOUT.consumer(GROUP, f"{GROUP}_a"))
    expire_by_id(group.session.hosts, group.live["a"].session)
    until(lambda: (n := group.session.read(LAYOUT.consumer(GROUP, f"{GROUP}_a"))) and n != before)
    group.settle("a session expired")
    group.read_on()
    stopped = group.live.pop("c")
    stopped.signal(signal.SIGSTOP)
    group.settle("a consumer was stopped")
    group.read_on()
    stopped.signal(signal.SIGCONT)
    group.live["c"] = stopped
    group.settle("it goes on")
    group.read_on()
    group.writer.stop()
    until(lambda: group.writer.stored <= group.delivered())

    journals = {one.name: one.deliveries for one in group.all}
    counts = defaultdict(int)
    for deliveries in journals.values():
        for delivery in deliveries:
            counts[delivery.payload] += 1
    again = sum(count - 1 for count in counts.values())
    print(f"{len(counts)} messages, {again} deliveries more than once")  # noqa: T201
    assert len(group.writer.stored) > 1000
    assert again < len(counts) / 10, "those since the last commits of who died or was expired"
    late = intrusions(journals)
    assert {name: count for name, count in late.items() if name != "c"} == {}
    # One, but for a machine that stood still as well.
    assert late.get("c", 0) <= stopped.losses, "what a stopped process had in hand, and no more"
    for name, deliveries in journals.items():
        assert gaps(deliveries) == [], name


def intrusions(journals: dict[str, list[Delivery]]) -> dict[str, int]:
    """How often each consumer went on with a partition that somebody else had begun to read meanwhile."""
    found: dict[str, int] = defaultdict(int)
    by_partition = defaultdict(list)
    for name, deliveries in journals.items():
        for delivery in deliveries:
            by_partition[delivery.partition].append((delivery.at, name, delivery))
    for rows in by_partition.values():
        last: dict[str, Delivery] = {}
        previous = ""
        for _, name, delivery in sorted(rows):
            went_on = name in last and last[name].next_offset == delivery.offset
            # Whoever gets a partition back goes on behind what the other one has dealt with.
            if previous not in ("", name) and went_on and last[previous].offset >= delivery.offset:
                found[name] += 1
            last[name], previous = delivery, name
    return dict(found)


def gaps(deliveries: list[Delivery]) -> list[Delivery]:
    """Where a consumer went further in a partition than to the next message, within a tenth of a second.

    In that time nobody else takes a partition over and hands it back.
    """
    last: dict[str, Delivery] = {}
    found = []
    for delivery in deliveries:
        before = last.get(delivery.partition)
        if before and delivery.at - before.at < 0.1 and delivery.offset > before.next_offset:
            found.append(delivery)
        last[delivery.partition] = delivery
    return found
