"""A data directory of ours with a little of everything, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer

import kafkalog_broker
from kafkalog_broker.cli import main
from pyspark_kafkalog import NewTopic, Producer, create_topics
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, Message

TOPIC = "flights"
PARTITIONS = 2
START_MS = 1_700_000_000_000


class Sent(NamedTuple):
    """What was written, by partition, and where it is exported."""

    target: Path
    messages: dict[int, list[Message]]


def sent_message(number: int) -> Message:
    """A record whose parts Kafka's tool prints as they are; times go back and forth."""
    value = None if number % 11 == 0 else b"value %d " % number * (1 + number % 40)
    key = b"key %d" % (number % 7) if value is None or number % 3 else None
    headers = (("h", b"%d" % number), ("h", b"2")) if number % 5 == 0 else ()
    return Message(value, key, START_MS + number * 37 % 5000, headers)


def _join(servers: str) -> None:
    """A static member of the group "b-group" gets its partitions, and leaves without a word."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "b-group", "group.instance.id": "i"})
    consumer.subscribe([TOPIC])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.close()


def write_and_export(directory: Path) -> Sent:
    """Produce with each codec, idempotent and not, by our producer and a foreign one; stop; export."""
    written: dict[int, list[Message]] = {partition: [] for partition in range(PARTITIONS)}
    properties = {"log.segment.bytes": 60_000, "log.index.interval.bytes": 1000}
    with kafkalog_broker.start_broker(properties, data_dir=directory / "ours") as running:
        create_topics(running.bootstrap_servers, [NewTopic(TOPIC, PARTITIONS), NewTopic("empty", 1)])
        number = 0
        for codec in CODECS:
            for idempotent in (True, False):
                batch = [sent_message(number + i) for i in range(400)]
                number += len(batch)
                config = {
                    "bootstrap.servers": running.bootstrap_servers, "compression.type": codec,
                    "enable.idempotence": idempotent, "batch.size": 3000, "linger.ms": 5,
                }  # fmt: skip
                with Producer(config) as out:
                    for m in batch:
                        out.send(
                            TOPIC, m.value, m.key, partition=0, headers=m.headers, timestamp_ms=m.timestamp
                        )
                written[0] += batch
                CLIENTS[0].produce(running.bootstrap_servers, TOPIC, 1, batch, codec, idempotent=idempotent)
                written[1] += batch
        CLIENTS[0].commit(running.bootstrap_servers, "a-group", TOPIC, 0, 17)
        _join(running.bootstrap_servers)
    target = directory / "exported"
    assert main(["export", str(directory / "ours"), str(target)]) == 0
    return Sent(target, written)
