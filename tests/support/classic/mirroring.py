"""The ends of a mirror: a broker of either wire that is written to or read from, and how a mirror is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.config.properties import format_properties
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.v07 import FetchRequest
from pyspark_kafkalog.types import NewRecord, Record
from tests.support.command_line import COMMAND, environment
from tests.support.zookeeper import PATIENT

BROKER: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0", "node.id": 1, "log.flush.interval": 1,
    **PATIENT,
}  # fmt: skip
PROMPT: dict[str, object] = {
    "groupid": "mirror", "fetcher.backoff.ms": 20, "rebalance.backoff.ms": 100,
    **PATIENT,
}  # fmt: skip


class Side:
    """*Not thread-safe.* A cluster of one broker, by one of its wires."""

    def __init__(self, broker: EmbeddedBroker, zookeeper: str, protocol: str) -> None:
        port = broker.port_of("KAFKA07" if protocol == "0.7" else "PLAINTEXT")
        self.protocol, self._zookeeper = protocol, zookeeper
        self.address = (broker.host, port)

    @classmethod
    def at(cls, host: str, port: int) -> Side:
        """A broker of another make, on today's wire, without ZooKeeper."""
        side = cls.__new__(cls)
        side.protocol, side._zookeeper, side.address = "0.8", "", (host, port)
        return side

    def write(
        self,
        topic: str,
        messages: Sequence[bytes | NewRecord],
        partition: int = 0,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Append one set. The topic is made if need be."""
        with self.producer() as producer:
            producer.send(topic, messages, partition, codec)

    def producer(self) -> SyncProducer:
        """For who writes often; to be closed."""
        return SyncProducer(*self.address, {"protocol": self.protocol})

    def read(self, topic: str, partition: int = 0) -> list[tuple[Codec, Record]]:
        """All that is there, with how its entries are compressed; nothing of a topic that is not there."""
        found: list[tuple[Codec, Record]] = []
        offset = 0
        with SimpleConsumer(*self.address, {"protocol": self.protocol}) as consumer:
            while True:
                (messages,) = consumer.multifetch([FetchRequest(topic, partition, offset, 1 << 20)])
                if messages.error is not None or not messages.data:
                    return found
                found += messages.coded_records()
                offset = messages.next_offset

    def fetched(self, topic: str, partition: int = 0) -> list[bytes]:
        """The same as bytes, fetch by fetch: entries as they are kept."""
        found: list[bytes] = []
        offset = 0
        with SimpleConsumer(*self.address, {"protocol": self.protocol}) as consumer:
            while data := (messages := consumer.fetch(topic, partition, offset)).data:
                found.append(bytes(data))
                offset = messages.next_offset
        return found

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        """The payloads of what is there; a null value is an empty one."""
        return [bytes(record.value or b"") for _, record in self.read(topic, partition)]

    def as_source(self, name: str, **properties: object) -> dict[str, object]:
        """The properties by which a mirror reads from here."""
        given = PROMPT | {"zookeeper.connect": self._zookeeper, "protocol": self.protocol} | properties
        return {f"source.{name}.{key}": value for key, value in given.items()}

    def as_source_by_brokers(self, name: str, **properties: object) -> dict[str, object]:
        """The same without ZooKeeper."""
        given = {
            "bootstrap.servers": "{}:{}".format(*self.address), "group.id": "mirror",
            "session.timeout.ms": 120_000, "heartbeat.interval.ms": 100, "metadata.max.age.ms": 200,
        } | properties  # fmt: skip
        return {f"source.{name}.{key}": value for key, value in given.items()}

    @contextmanager
    def transactions(self, topic: str) -> Iterator[Producer]:
        """A committed transaction of 0 and 1, an aborted one of 2 and 3, a committed one of 4, and one of 5
        that is open: its producer.
        """
        server = {"bootstrap.servers": "{}:{}".format(*self.address)}
        with Producer({**server, "transactional.id": topic}) as producer:
            producer.init_transactions()
            for values, committed in [((0, 1), True), ((2, 3), False), ((4,), True)]:
                producer.begin_transaction()
                for value in values:
                    producer.send(topic, b"%d" % value, partition=0)
                producer.flush()
                if committed:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
            producer.begin_transaction()
            producer.send(topic, b"5", partition=0)
            producer.flush()
            yield producer

    def as_target(self, **properties: object) -> dict[str, object]:
        """The properties by which a mirror writes to here."""
        found: dict[str, object] = {"protocol": self.protocol}
        if self.protocol == "0.7":
            found |= {"zookeeper.connect": self._zookeeper, "queue.time": 50, "retry.backoff.ms": 20}
        else:
            found["bootstrap.servers"] = "{}:{}".format(*self.address)
        return {f"target.{key}": value for key, value in (found | properties).items()}


def start_mirror(directory: Path, *several: Mapping[str, object]) -> subprocess.Popen[str]:
    """``kafkalog mirror`` in a process of its own, by a file of these properties in ``directory``."""
    file = directory / "mirror.properties"
    file.write_text(
        format_properties({name: str(value) for given in several for name, value in given.items()})
    )
    return subprocess.Popen(
        [*COMMAND, "mirror", str(file)], env=environment(None), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
