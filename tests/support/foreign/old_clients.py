"""Clients that are told to speak as Kafka 0.8 to 0.10 did, and ours that read and write what those do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark_kafkalog import Producer
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.types import NO_TIMESTAMP, TopicPartition
from tests.support.foreign.foreign_aiokafka import Aiokafka, OldAiokafka, SetsOfAiokafka
from tests.support.foreign.foreign_clients import Confluent, KafkaPython
from tests.support.foreign.foreign_face import WAIT_SECONDS, Message

OLD_CODECS = ("none", "gzip", "snappy", "lz4")

_COLUMNS = ("value", "key", "timestamp", "headers", "offset")


Settings = Mapping[str, object]
"""Properties that a client of ours has on top, such as which release the brokers are of."""

NOTHING: Settings = MappingProxyType({})


class OurProducer:
    """Ours, with a `message.format`, or the one that the settings ask for."""

    def __init__(self, message_format: str | None, settings: Settings = NOTHING) -> None:
        self.name = f"our producer, {message_format or 'as told'}"
        self._format, self._settings = message_format, settings

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        batch: Sequence[Message],
        codec: str,
        *,
        idempotent: bool,
    ) -> list[int]:
        config = {
            "bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": idempotent,
            "message.format": self._format, "batch.size": 8192, **self._settings,
        }  # fmt: skip
        with Producer(config) as out:
            sent = [
                out.send(
                    topic, m.value, m.key, partition=partition, timestamp_ms=m.timestamp, headers=m.headers
                )
                for m in batch
            ]
            return [delivery.result(WAIT_SECONDS).offset for delivery in sent]


class OurConsumer:
    """Ours: fetch by fetch, the caller keeps the offset."""

    name = "our consumer"

    def __init__(self, settings: Settings = NOTHING) -> None:
        self._settings = {"protocol": "0.8", **settings}

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        host, port = servers.split(":")
        found: list[Message] = []
        with SimpleConsumer(host, int(port), self._settings) as consumer:
            while len(found) < count:
                answer = consumer.fetch(topic, partition, offset, 4096)
                assert answer.next_offset > offset, "the log ends before that"
                found += [Message(r.value, r.key, r.timestamp, r.headers) for r in answer.records()]
                offset = answer.next_offset
        return found[:count]


class OurRangeReader:
    """What a task of Spark's does, without Spark."""

    name = "our range reader"

    def __init__(self, settings: Settings = NOTHING) -> None:
        self._options = {f"kafka.{name}": str(value) for name, value in settings.items()}

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        options = {**self._options, "kafka.bootstrap.servers": servers, "subscribe": topic}
        reader = BatchReader(parse_batch_options(options), _COLUMNS)
        found: list[Message] = []
        offsets: list[int] = []
        for rows in reader.read(KafkaInputPartition(topic, partition, offset, offset + count, 0)):
            times = rows.column("timestamp").cast("int64").to_pylist()
            for row, time in zip(rows.to_pylist(), times, strict=True):
                headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
                found.append(Message(row["value"], row["key"], _milliseconds(time), headers))
                offsets.append(row["offset"])
        assert offsets == list(range(offset, offset + count))
        return found


class OurCommandLine:
    """What ``kafkalog consume`` reads by: the decoder of plain Python."""

    name = "kafkalog"

    def __init__(self, settings: Settings = NOTHING) -> None:
        self._settings = settings

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        config = parse(ConsumerConfig, {**self._settings, "bootstrap.servers": servers}, source="test")
        cluster = Cluster(config)
        try:
            ranges = {TopicPartition(topic, partition): (offset, offset + count)}
            batches = [batch for _, batch in read_ranges(cluster, ranges, config)]
        finally:
            cluster.close()
        return [Message(r.value, r.key, r.timestamp, r.headers) for batch in batches for r in batch]


def _milliseconds(microseconds: int | None) -> int:
    if microseconds is None:
        return NO_TIMESTAMP
    return microseconds // 1000


class Dialect(NamedTuple):
    """A client and the newest message format that it writes, or reads: what is newer is converted for it."""

    client: Any
    magic: int
    lz4_of_v0: bool = True
    """Whether it knows lz4 in sets of v0, whose header is not that of lz4's own format."""
    mixes: bool = True
    """Whether it can be given entries of several formats at once."""

    @property
    def name(self) -> str:
        return str(self.client.name)

    def has(self, codec: str, magic: int) -> bool:
        """Whether it can write, or read, sets of this codec and format."""
        return codec != "lz4" or magic > 0 or self.lz4_of_v0


def librdkafka(version: str) -> Confluent:
    """One that takes the broker for one of ``version``, and asks for no versions if that is before 0.10.

    From 0.10 on it asks, whatever it is told, and so writes and reads record batches.
    """
    settings = {"api.version.request": False, "broker.version.fallback": version, "log_level": 2}
    return Confluent(f"librdkafka, {version}", settings)


def kafka_python(*version: int) -> KafkaPython:
    """The same of kafka-python, which asks from 0.10 on but does not go beyond what it is told."""
    return KafkaPython(f"kafka-python, {'.'.join(map(str, version))}", api_version=version)


_XXHASH = find_spec("xxhash") is not None
"""What kafka-python wants for lz4 in v0."""

OLD_FOREIGN = (
    Dialect(librdkafka("0.8.2"), 0),
    Dialect(librdkafka("0.9.0"), 0),
    Dialect(librdkafka("0.10.0"), 2),
    Dialect(kafka_python(0, 8, 2), 0, _XXHASH),
    Dialect(kafka_python(0, 9), 0, _XXHASH),
    Dialect(kafka_python(0, 10, 0), 1, _XXHASH),
)
"""Foreign clients that are told to be old; they write and read."""

WRITERS = (
    *OLD_FOREIGN,
    Dialect(SetsOfAiokafka(0), 0, lz4_of_v0=False),
    Dialect(SetsOfAiokafka(1), 1),
    Dialect(OurProducer("v0"), 0),
    Dialect(OurProducer("v1"), 1),
    Dialect(Confluent(), 2),
    Dialect(OurProducer("v2"), 2),
)

OUR_READERS = tuple(Dialect(kind(), 2) for kind in (OurConsumer, OurRangeReader, OurCommandLine))

READERS = (
    *OLD_FOREIGN,
    Dialect(OldAiokafka("0.9", {1: 1, 2: 0, 3: 0, 8: 2, 9: 1}), 0, lz4_of_v0=False),
    Dialect(OldAiokafka("0.10", {1: 3, 2: 0, 3: 1, 8: 2, 9: 1}), 1, lz4_of_v0=False),
    Dialect(Confluent(), 2),
    Dialect(KafkaPython(), 2, _XXHASH),
    # Its decoder in C takes the first entry's format for that of all; the one in Python does not.
    Dialect(Aiokafka(), 2, lz4_of_v0=False, mixes=False),
    *OUR_READERS,
)


def as_told(batch: Sequence[Message], magic: int) -> list[Message]:
    """What is left of records that went through a format: v0 has no times, neither it nor v1 has headers."""
    return [
        m._replace(timestamp=m.timestamp if magic else NO_TIMESTAMP, headers=m.headers if magic == 2 else ())
        for m in batch
    ]
