"""Clients that speak as Kafka 0.8 to 0.10 did: what one writes every other reads, old or new, and so do ours.

Topics keep record batches, or what `message.format.version` says, which may be records as they came. They are
converted where the reader knows less. What a conversion cannot keep is `old_clients.as_told`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.formats.batch import codec_at, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import read_entry
from pyspark_kafkalog.formats.message_set import frames
from tests.support.foreign.foreign_aiokafka import Aiokafka
from tests.support.foreign.foreign_clients import Confluent, KafkaPython
from tests.support.foreign.foreign_face import Message, messages
from tests.support.foreign.old_clients import (
    OLD_CODECS,
    OLD_FOREIGN,
    OUR_READERS,
    READERS,
    WRITERS,
    Dialect,
    OurProducer,
    as_told,
    kafka_python,
)
from tests.support.protocol.raw_client import RawClient

EACH = 40
"""Records of each codec."""

MESSAGES = messages(EACH)
PLAIN = [m._replace(headers=()) for m in MESSAGES]

Stored = set[tuple[int, Codec]]

each_writer = pytest.mark.parametrize("writer", WRITERS, ids=lambda one: one.name)
one_of_each_format = pytest.mark.parametrize(
    "writer",
    [next(one for one in WRITERS if one.magic == magic) for magic in (0, 1, 2)],
    ids=lambda one: one.name,
)
each_reader = pytest.mark.parametrize("reader", READERS, ids=lambda one: one.name)


def sent_by(writer: Dialect) -> list[Message]:
    """What it can be given: an older one would refuse headers."""
    return MESSAGES if writer.magic == 2 else PLAIN


def stored(servers: str, topic: str) -> Stored:
    """Format and codec of the entries that the broker keeps."""
    with RawClient(int(servers.split(":")[1])) as client:
        data = memoryview(bytes(client.fetch(topic, 0).records or b""))
    found = set()
    for frame in frames(data):
        magic = magic_at(data, frame.position)
        codec = codec_at(data, frame.position) if magic == 2 else read_entry(data, frame.position).codec
        found.add((magic, codec))
    return found


AS_SENT = {"message.format.version": "producer"}


@pytest.fixture(scope="module")
def written(servers: str) -> Callable[[Dialect], tuple[str, tuple[str, ...]]]:
    """The topic that a writer has written, once for all readers, and in which codecs: lz4 comes last."""
    topics: dict[str, str] = {}

    def topic_of(writer: Dialect) -> tuple[str, tuple[str, ...]]:
        codecs = OLD_CODECS if writer.has("lz4", writer.magic) else OLD_CODECS[:3]
        if writer.name not in topics:
            # A short name would not do: librdkafka has too small a buffer for such an answer of Metadata 0.
            topic = topics[writer.name] = f"old-versions-{len(topics)}"
            create_topics(servers, [NewTopic(topic, 1, configs=AS_SENT)])
            for number, codec in enumerate(codecs):
                batch = sent_by(writer)
                offsets = writer.client.produce(servers, topic, 0, batch, codec, idempotent=False)
                assert offsets == list(range(number * EACH, (number + 1) * EACH)), codec
        return topics[writer.name], codecs

    return topic_of


Written = Callable[[Dialect], tuple[str, tuple[str, ...]]]


@each_writer
def test_entries_are_kept_as_they_came(servers: str, written: Written, writer: Dialect) -> None:
    topic, codecs = written(writer)
    assert stored(servers, topic) == {(writer.magic, Codec.named(codec)) for codec in codecs}


@pytest.mark.long("every client with every other")
@one_of_each_format
@each_reader
def test_what_one_writes_the_other_reads(
    servers: str, written: Written, writer: Dialect, reader: Dialect
) -> None:
    topic, codecs = written(writer)
    magic = min(writer.magic, reader.magic)
    read = len([codec for codec in codecs if reader.has(codec, magic)])
    found = reader.client.consume(servers, topic, 0, 0, read * EACH)
    assert found == as_told(sent_by(writer), magic) * read


@pytest.fixture(scope="module")
def mixed(servers: str) -> tuple[str, list[tuple[int, Message]]]:
    """One partition with v0, v1 and v2 in every codec in turn, and its records with the format of each."""
    topic = "old-versions-mixed"
    create_topics(servers, [NewTopic(topic, 1, configs=AS_SENT)])
    rows: list[tuple[int, Message]] = []
    for codec in OLD_CODECS[:3]:
        for magic in (2, 0, 1, 0, 2):
            batch = MESSAGES if magic == 2 else PLAIN
            OurProducer(f"v{magic}").produce(servers, topic, 0, batch, codec, idempotent=False)
            rows += [(magic, m) for m in batch]
    return topic, rows


@pytest.mark.long("every client with every other")
@pytest.mark.parametrize("reader", [one for one in READERS if one.mixes], ids=lambda one: one.name)
@pytest.mark.parametrize("start", [0, 7 * EACH + 1])
def test_one_partition_may_hold_all_formats(
    servers: str, mixed: tuple[str, list[tuple[int, Message]]], reader: Dialect, start: int
) -> None:
    topic, rows = mixed
    expected = [as_told([m], min(magic, reader.magic))[0] for magic, m in rows[start:]]
    assert reader.client.consume(servers, topic, 0, start, len(expected)) == expected


@pytest.mark.long("every client with every other")
@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1), ("0.11.0", 2), (None, 2)])
@one_of_each_format
def test_a_topic_of_one_format_converts_what_is_written(
    servers: str, topic_name: str, writer: Dialect, version: str | None, magic: int
) -> None:
    configs = {} if version is None else {"message.format.version": version}
    create_topics(servers, [NewTopic(topic_name, 1, configs=configs)])
    codecs = OLD_CODECS if writer.has("lz4", writer.magic) else OLD_CODECS[:3]
    kept = MESSAGES if writer.magic == magic == 2 else PLAIN
    for codec in codecs:
        writer.client.produce(servers, topic_name, 0, kept, codec, idempotent=False)
    assert stored(servers, topic_name) == {(magic, Codec.named(codec)) for codec in codecs}
    expected = as_told(kept, min(writer.magic, magic)) * len(codecs)
    for reader in (*OUR_READERS, Dialect(Confluent(), 2)):
        assert reader.client.consume(servers, topic_name, 0, 0, len(expected)) == expected, reader.name


@pytest.mark.parametrize("writer", [one for one in WRITERS if one.magic], ids=lambda one: one.name)
def test_times_lead_to_offsets_for_any_writer(servers: str, written: Written, writer: Dialect) -> None:
    topic, codecs = written(writer)
    last = len(codecs) * EACH
    for number in (0, 1, EACH - 1):
        assert Confluent().offsets(servers, topic, 0, PLAIN[number].timestamp - 1) == (0, last, number)
    assert Confluent().offsets(servers, topic, 0, PLAIN[-1].timestamp + 1) == (0, last, None)


@pytest.mark.long("every client with every other")
@one_of_each_format
def test_a_topic_that_sets_times_sets_them_for_all(servers: str, topic_name: str, writer: Dialect) -> None:
    create_topics(servers, [NewTopic(topic_name, 1, configs={"message.timestamp.type": "LogAppendTime"})])
    begun = time.time_ns() // 1_000_000
    writer.client.produce(servers, topic_name, 0, PLAIN, "gzip", idempotent=False)
    ended = time.time_ns() // 1_000_000
    for reader in (*OLD_FOREIGN[-1:], *OUR_READERS, Dialect(Confluent(), 2)):
        found = reader.client.consume(servers, topic_name, 0, 0, EACH)
        times = {m.timestamp for m in found}
        if reader.magic:
            assert all(begun <= each <= ended for each in times), reader.name
        else:
            assert times == {-1}, reader.name
        assert [(m.key, m.value) for m in found] == [(m.key, m.value) for m in PLAIN], reader.name


@pytest.mark.parametrize("client", OLD_FOREIGN, ids=lambda one: one.name)
def test_old_clients_find_where_a_log_begins_and_ends(servers: str, topic_name: str, client: Dialect) -> None:
    create_topics(servers, [NewTopic(topic_name, 1)])
    client.client.produce(servers, topic_name, 0, PLAIN, "none", idempotent=False)
    assert client.client.ends(servers, topic_name, 0) == (0, EACH)


@pytest.mark.parametrize("client", OLD_FOREIGN, ids=lambda one: one.name)
def test_an_offset_that_an_old_client_commits_is_the_same_for_all(
    servers: str, topic_name: str, client: Dialect
) -> None:
    create_topics(servers, [NewTopic(topic_name, 1)])
    group = f"group-{topic_name}"
    client.client.commit(servers, group, topic_name, 0, 7)
    readers = [one.client for one in OLD_FOREIGN] + [Confluent(), KafkaPython(), Aiokafka()]
    found = {one.name: one.committed(servers, group, topic_name, 0) for one in readers}
    assert set(found.values()) == {7}, found


def test_a_topic_that_an_old_admin_makes_is_there(servers: str, topic_name: str) -> None:
    kafka_python(0, 10, 1).create_topic(servers, topic_name, 3)
    assert topic_name in kafka_python(0, 10, 0).topics(servers)
    assert stored(servers, topic_name) == set()
