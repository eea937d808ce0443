"""Two brokers under one ZooKeeper, each with one client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster, start_broker
from pyspark_kafkalog.config.properties import format_properties
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until
from tests.support.zookeeper import PATIENT, expire_broker

_TEXTS = {name: str(value) for name, value in PATIENT.items()}

SOON_MISSED = {"zookeeper.session.timeout.ms": 3000}
"""For a broker that must notice by its own clock that it was away. Whatever is asked of it before may have
to be asked again: a machine that stands still is away as well.
"""


class Two:
    """Brokers 1 and 2, each with one client. Their sessions end when a test says so: `miss`."""

    def __init__(self, place: str, directory: Path, own: Mapping[str, object] = MappingProxyType({})) -> None:
        self._place = place
        self._own = {"zookeeper.connect": place, **PATIENT, **own}
        self._directory = directory
        self._properties = directory / "server.properties"
        self._properties.write_text(format_properties({"zookeeper.connect": place} | _TEXTS))
        self.brokers: dict[int, EmbeddedBroker] = {}
        self.clients: dict[int, RawClient] = {}

    def __enter__(self) -> Two:
        self.start(1)
        self.start(2)
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.brokers):
            self.stop(number)

    def start(self, number: int, own: Mapping[str, object] = MappingProxyType({})) -> RawClient:
        listeners = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
        self.brokers[number] = start_broker(
            {**self._own, "node.id": number, "listeners": listeners, **own},
            data_dir=self._directory / str(number),
        )
        return self.connect(number)

    def connect(self, number: int) -> RawClient:
        """A new client of a broker."""
        self.clients[number] = RawClient(self.brokers[number].port_of("PLAINTEXT"))
        return self.clients[number]

    def stop(self, number: int) -> None:
        self.clients.pop(number).close()
        self.brokers.pop(number).stop()

    def miss(self, number: int) -> None:
        """Have ZooKeeper end a broker's session, as it would once it has missed it."""
        expire_broker(self._place, number)

    def describe(self, number: int, topic: str) -> MetadataResponseTopic:
        """What a broker says of a topic; asking for it makes it where nobody has it."""
        (told,) = self.clients[number].ask(MetadataRequest(topics=(MetadataRequestTopic(name=topic),))).topics
        return told

    def create(self, topic: str, *owners: int) -> None:
        """A topic that is led by these brokers, as both see it."""
        assigned = tuple(
            CreatableReplicaAssignment(partition_index=number, broker_ids=(owner,))
            for number, owner in enumerate(owners)
        )
        wanted = CreatableTopic(
            name=topic, num_partitions=-1, replication_factor=-1, assignments=assigned, configs=()
        )
        request = CreateTopicsRequest(topics=(wanted,), timeout_ms=60_000)

        def attempt() -> bool:
            (made,) = self.clients[1].ask(request).topics
            # Broker 1 may not have seen yet that broker 2 is there.
            assert made.error_code in (ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT), made
            return made.error_code == ErrorCode.NONE

        until(attempt)
        until(lambda: leaders(self.describe(1, topic)) == leaders(self.describe(2, topic)) == list(owners))

    def forget(self, number: int, *more: str, answer: str = "") -> tuple[int, str]:
        """What ``kafkalog-broker forget`` returns and says."""
        ran = subprocess.run(
            [sys.executable, "-m", "kafkalog_broker", "forget", str(number), str(self._properties), *more],
            input=answer, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        return ran.returncode, ran.stdout + ran.stderr

    def aside(self, number: int) -> list[str]:
        """What a broker has set aside: ``t_0``."""
        return sorted(path.name for path in (self._directory / str(number)).glob(".aside/*/*"))


def await_all(cluster: EmbeddedCluster) -> None:
    """Wait until each broker knows all of them: before that a topic may be spread over fewer."""
    for broker in cluster.brokers.values():
        with RawClient(broker.port) as client:
            until(
                lambda client=client: (
                    len(client.ask(MetadataRequest(topics=())).brokers) == len(cluster.brokers)
                )
            )


def leaders(told: MetadataResponseTopic) -> list[int]:
    return [p.leader_id for p in sorted(told.partitions, key=lambda p: p.partition_index)]


def all_led(two: Two, number: int, topic: str) -> list[int]:
    """The leaders that a broker names; none before all partitions have one."""
    found = leaders(two.describe(number, topic))
    return [] if -1 in found else found


def write_everywhere(two: Two, topic: str, value: bytes, count: int) -> dict[int, list[int]]:
    """Produce to each partition at each broker; the partitions that each one took, which are all."""
    taken: dict[int, list[int]] = {number: [] for number in two.clients}

    def attempt(partition: int) -> bool:
        """An owner that did not run for a while first looks again what it owns."""
        for number, client in two.clients.items():
            code = client.produce(topic, batch(value), partition).error_code
            assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if code == ErrorCode.NONE:
                taken[number].append(partition)
        return any(partition in each for each in taken.values())

    for partition in range(count):
        until(partial(attempt, partition))
    return taken


def empty(session: ZooKeeperSession, path: str) -> None:
    """Remove a znode and everything below it."""
    for child in session.children(path):
        empty(session, f"{path}/{child}")
    session.delete(path)
