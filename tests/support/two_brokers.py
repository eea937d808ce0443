"""Two brokers under one ZooKeeper, each with one client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from pyspark_kafkalog.zookeeper.session import Session
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until

SESSION_SECONDS = 4


class Two:
    """Brokers 1 and 2, each with one client."""

    def __init__(self, place: str, directory: Path, own: Mapping[str, object] = MappingProxyType({})) -> None:
        session_ms = SESSION_SECONDS * 1000
        self._own = {"zookeeper.connect": place, "zookeeper.session.timeout.ms": session_ms, **own}
        self._directory = directory
        self._properties = directory / "server.properties"
        self._properties.write_text(f"zookeeper.connect={place}\n")
        self.brokers: dict[int, EmbeddedBroker] = {}
        self.clients: dict[int, RawClient] = {}

    def __enter__(self) -> Two:
        self.start(1)
        self.start(2)
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.brokers):
            self.stop(number)

    def start(self, number: int) -> RawClient:
        listeners = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
        self.brokers[number] = start_broker(
            self._own | {"node.id": number, "listeners": listeners},
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
        request = CreateTopicsRequest(topics=(wanted,), timeout_ms=5000)

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
            [sys.executable, "-m", "broker", "forget", str(number), str(self._properties), *more],
            input=answer, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return ran.returncode, ran.stdout + ran.stderr

    def aside(self, number: int) -> list[str]:
        """What a broker has set aside: ``t_0``."""
        return sorted(path.name for path in (self._directory / str(number)).glob(".aside/*/*"))


def leaders(told: MetadataResponseTopic) -> list[int]:
    return [p.leader_id for p in sorted(told.partitions, key=lambda p: p.partition_index)]


def all_led(two: Two, number: int, topic: str) -> list[int]:
    """The leaders that a broker names; none before all partitions have one."""
    found = leaders(two.describe(number, topic))
    return [] if -1 in found else found


def write_everywhere(two: Two, topic: str, value: bytes, count: int) -> dict[int, list[int]]:
    """Produce to each partition at each broker; the partitions that each one took."""
    taken: dict[int, list[int]] = {number: [] for number in two.clients}
    for number, client in two.clients.items():
        for partition in range(count):
            code = client.produce(topic, batch(value), partition).error_code
            assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if code == ErrorCode.NONE:
                taken[number].append(partition)
    return taken


def empty(session: Session, path: str) -> None:
    """Remove a znode and everything below it."""
    for child in session.children(path):
        empty(session, f"{path}/{child}")
    session.delete(path)
