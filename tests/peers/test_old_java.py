"""Kafka's own Java clients of 0.9 to 0.11 at our broker: what they write others read, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import NewTopic, create_topics
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.foreign_clients import Confluent
from tests.support.foreign.foreign_face import Message, messages
from tests.support.foreign.old_clients import OLD_CODECS, OUR_READERS, Dialect, OurProducer, as_told
from tests.support.foreign.old_java import FORMATS, OldJava

EACH = 40
"""Records of each codec."""

MESSAGES = messages(EACH)
WITHOUT_HEADERS = [m._replace(headers=()) for m in MESSAGES]

OTHER_WRITERS = (
    Dialect(OurProducer("v0"), 0),
    Dialect(OurProducer("v1"), 1),
    Dialect(OurProducer("v2"), 2),
    Dialect(Confluent(), 2),
)
OTHER_READERS = (*OUR_READERS, Dialect(Confluent(), 2))

Java = Callable[[str], Dialect]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with start_broker({"auto.create.topics.enable": False, "log.retention.ms": -1}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def java(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """The clients of a version; skips the test where they cannot be had, and says why."""
    running: dict[str, OldJava] = {}
    directory: Path = tmp_path_factory.mktemp("old-java")

    def of(version: str) -> Dialect:
        if version not in running:
            try:
                running[version] = OldJava(version, servers, directory / f"{version}.log")
            except NotAvailable as e:
                pytest.skip(f"Kafka's clients of {version} are not here: {e}")
        return Dialect(running[version], FORMATS[version])

    yield of
    for each in running.values():
        each.close()


@pytest.fixture(scope="module")
def written(servers: str) -> Callable[[Dialect], str]:
    """The topic that a writer has written, in every codec, once for all readers."""
    topics: dict[str, str] = {}

    def topic_of(writer: Dialect) -> str:
        if writer.name not in topics:
            topic = topics[writer.name] = f"java-{len(topics)}"
            create_topics(servers, [NewTopic(topic, 1)])
            for number, codec in enumerate(OLD_CODECS):
                offsets = writer.client.produce(servers, topic, 0, sent_by(writer), codec, idempotent=False)
                assert offsets == list(range(number * EACH, (number + 1) * EACH)), codec
        return topics[writer.name]

    return topic_of


Written = Callable[[Dialect], str]


def sent_by(writer: Dialect) -> list[Message]:
    return MESSAGES if writer.magic == 2 else WITHOUT_HEADERS


def check(servers: str, written: Written, writer: Dialect, reader: Dialect) -> None:
    """All that was written is read, and from within a compressed set on as well."""
    expected = as_told(sent_by(writer), min(writer.magic, reader.magic)) * len(OLD_CODECS)
    topic = written(writer)
    assert reader.client.consume(servers, topic, 0, 0, len(expected)) == expected
    start = EACH + 7
    assert reader.client.consume(servers, topic, 0, start, len(expected) - start) == expected[start:]


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("reader", OTHER_READERS, ids=lambda one: one.name)
def test_what_java_writes_the_others_read(
    servers: str, java: Java, written: Written, version: str, reader: Dialect
) -> None:
    check(servers, written, java(version), reader)


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("writer", OTHER_WRITERS, ids=lambda one: one.name)
def test_what_the_others_write_java_reads(
    servers: str, java: Java, written: Written, version: str, writer: Dialect
) -> None:
    check(servers, written, writer, java(version))


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("other", FORMATS)
def test_what_one_version_of_java_writes_another_reads(
    servers: str, java: Java, written: Written, version: str, other: str
) -> None:
    check(servers, written, java(version), java(other))
