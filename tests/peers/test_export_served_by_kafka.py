"""What we export, Apache Kafka starts on and serves: the way to move a topic there in docs/operations.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from tests.peers.exported import PARTITIONS, START_MS, TOPIC, Sent, sent_message, write_and_export
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import Message

LIBRDKAFKA = CLIENTS[0]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return write_and_export(tmp_path_factory.mktemp("export"))


def take_over(sent: Sent, kafka: ApacheKafka) -> None:
    """Put the exported logs in the place of empty ones. Kafka's topic id stays, and its note that it was
    stopped cleanly: it uses the indexes as they are instead of making its own.
    """
    for partition in range(PARTITIONS):
        own = kafka.data_dir / f"{TOPIC}-{partition}"
        for path in own.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (sent.target / own.name).iterdir():
            if path.name != "partition.metadata":
                shutil.copy(path, own)


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, sent: Sent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A Kafka of its own that has started on the exported logs."""
    kafka = ApacheKafka(kafka_jars, tmp_path_factory.mktemp("kafka"))
    try:
        kafka.start()
        create_topics(kafka.bootstrap_servers, [NewTopic(TOPIC, PARTITIONS)])
        kafka.stop()
        take_over(sent, kafka)
        yield kafka.start()
    finally:
        kafka.stop()


@pytest.mark.parametrize(("partition", "start"), [(0, 0), (1, 0), (1, 1), (1, 1234), (1, 3999)])
def test_a_foreign_client_reads_every_record_from_any_offset(
    sent: Sent, kafka: ApacheKafka, partition: int, start: int
) -> None:
    want = sent.messages[partition][start:]
    assert LIBRDKAFKA.consume(kafka.bootstrap_servers, TOPIC, partition, start, len(want)) == want


@pytest.mark.parametrize("after_ms", [0, 2500, 4999, 5000])
def test_times_lead_to_offsets(sent: Sent, kafka: ApacheKafka, after_ms: int) -> None:
    for partition, messages in sent.messages.items():
        first = next((i for i, m in enumerate(messages) if m.timestamp >= START_MS + after_ms), None)
        found = LIBRDKAFKA.offsets(kafka.bootstrap_servers, TOPIC, partition, START_MS + after_ms)
        assert found == (0, len(messages), first)


def test_kafka_continues_where_the_export_ends(sent: Sent, kafka: ApacheKafka) -> None:
    more: list[Message] = [sent_message(i) for i in range(9000, 9050)]
    end = len(sent.messages[0])
    offsets = LIBRDKAFKA.produce(kafka.bootstrap_servers, TOPIC, 0, more, "lz4", idempotent=True)
    assert offsets == list(range(end, end + 50))
    assert LIBRDKAFKA.consume(kafka.bootstrap_servers, TOPIC, 0, end - 1, 51) == [
        sent.messages[0][-1], *more,
    ]  # fmt: skip
