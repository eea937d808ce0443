"""Two brokers of Kafka 0.7's wire that meet in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.protocol.wire07 import Wire07, fetch, produce


@dataclass(frozen=True)
class TwoBrokers07:
    """Brokers by id, and where they meet: what to give as ``zookeeper.connect``."""

    place: str
    brokers: Mapping[int, EmbeddedBroker]

    def put(self, broker: int, topic: str, partition: int, *sets: bytes) -> None:
        """Produce sets, one after the other; they can be read when this returns."""
        with Wire07(self.port(broker)) as wire:
            for data in sets:
                wire.send(produce(topic, partition, data))
                assert wire.ask(fetch(topic, partition, 0, 0)) is not None

    def port(self, broker: int) -> int:
        return self.brokers[broker].port_of("KAFKA07")

    @property
    def list(self) -> str:
        """What to give as ``broker.list``."""
        return ",".join(f"{id}:127.0.0.1:{self.port(id)}" for id in self.brokers)
