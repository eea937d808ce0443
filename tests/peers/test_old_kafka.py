"""Real brokers of before record batches: what ours write there others read, and the other way round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.mirror import Mirror
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets, list_groups
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, UnsupportedVersion
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.foreign_face import Message, messages
from tests.support.foreign.old_clients import (
    OLD_CODECS,
    OurCommandLine,
    OurConsumer,
    OurProducer,
    OurRangeReader,
    as_told,
    librdkafka,
)
from tests.support.foreign.old_java import OldJava
from tests.support.foreign.old_kafka import FORMATS, OldKafka
from tests.support.spark.frame_rows import assert_rows
from tests.support.until import until

MESSAGES = [m._replace(headers=()) for m in messages(30)]
LIBRDKAFKA = {"0.8.2.2": "0.8.2", "0.9.0.1": "0.9.0"}
"""As what librdkafka is told of a broker that does not tell itself."""


@pytest.fixture(scope="module", params=FORMATS)
def kafka(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OldKafka]:
    version = request.param
    try:
        made = OldKafka(version, tmp_path_factory.mktemp("kafka"), f"{zookeeper.connect}/kafka-{version}")
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka {version} is not here: {e}")
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def told(kafka: OldKafka) -> dict[str, object]:
    """What our clients must be told of the broker. 0.9 leaves a question that it does not know unanswered."""
    return {
        "broker.version.fallback": kafka.version,
        "api.version.request": not kafka.version.startswith("0.9"),
    }


@pytest.fixture
def cluster(kafka: OldKafka) -> Iterator[Cluster]:
    made = Cluster(
        ConsumerConfig(
            bootstrap_servers=kafka.bootstrap_servers,
            broker_version_fallback=kafka.version,
            api_version_request=False,
        )
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def java(kafka: OldKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldJava | None]:
    """Kafka's own clients of 0.9; there were none that read before."""
    if kafka.version.startswith("0.8"):
        yield None
        return
    try:
        client = OldJava("0.9.0.1", kafka.bootstrap_servers, tmp_path_factory.mktemp("java") / "java.log")
    except NotAvailable as e:
        pytest.skip(f"old clients of Kafka are not here: {e}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def foreign(kafka: OldKafka, java: OldJava | None) -> list[Any]:
    """Clients of others that speak to the broker."""
    # From 0.10 on librdkafka asks, and takes this broker for what it is.
    return [librdkafka(LIBRDKAFKA.get(kafka.version, "0.10.0")), *([java] if java is not None else [])]


@pytest.fixture(scope="module")
def written(
    kafka: OldKafka, told: dict[str, object], foreign: list[Any]
) -> tuple[TopicPartition, list[Message]]:
    """What every writer has written in every codec, as it can be read."""
    topic, expected = "written", []
    message_format = "v1" if kafka.magic else None  # one that tells its versions need not be named
    for writer in (OurProducer(message_format, told), *foreign):
        magic = min(kafka.magic, getattr(writer, "magic", 1))
        for codec in OLD_CODECS:
            offsets = writer.produce(kafka.bootstrap_servers, topic, 0, MESSAGES, codec, idempotent=False)
            assert offsets == list(range(len(expected), len(expected) + len(MESSAGES)))
            expected += as_told(MESSAGES, magic)
    return TopicPartition(topic, 0), expected


@pytest.mark.parametrize("start", [0, 77, 200])
def test_every_record_is_read_by_ours(
    kafka: OldKafka, told: dict[str, object], written: tuple[TopicPartition, list[Message]], start: int
) -> None:
    tp, expected = written
    for reader in (OurConsumer(told), OurRangeReader(told), OurCommandLine(told)):
        left = len(expected) - start
        found = reader.consume(kafka.bootstrap_servers, tp.topic, 0, start, left)
        assert found == expected[start:], reader.name


def test_others_read_what_ours_wrote(
    kafka: OldKafka, foreign: list[Any], written: tuple[TopicPartition, list[Message]]
) -> None:
    tp, expected = written
    for reader in foreign:
        found = reader.consume(kafka.bootstrap_servers, tp.topic, 0, 0, len(expected))
        assert found == as_told(expected, min(kafka.magic, getattr(reader, "magic", 1))), reader.name


def test_an_entry_that_is_larger_than_the_fetch_is_read(kafka: OldKafka, told: dict[str, object]) -> None:
    large = [Message(bytes([n]) * 200_000, b"k", 5, ()) for n in range(4)]
    writer = OurProducer("v1" if kafka.magic else None, told)
    writer.produce(kafka.bootstrap_servers, "large", 0, large, "none", idempotent=False)
    reader = OurRangeReader({**told, "max.partition.fetch.bytes": 1000})
    assert reader.consume(kafka.bootstrap_servers, "large", 0, 0, 4) == as_told(large, kafka.magic)
    assert OurConsumer(told).consume(kafka.bootstrap_servers, "large", 0, 0, 4) == as_told(large, kafka.magic)


def test_offsets_are_looked_up_by_segments(
    cluster: Cluster, written: tuple[TopicPartition, list[Message]]
) -> None:
    tp, expected = written
    assert list_offsets(cluster, {tp: EARLIEST_TIMESTAMP})[tp].offset == 0
    assert list_offsets(cluster, {tp: LATEST_TIMESTAMP})[tp].offset == len(expected)
    assert list_offsets(cluster, {tp: 1000}, by_segment=True)[tp].offset == 0
    later = int(time.time() * 1000) + 60_000
    assert list_offsets(cluster, {tp: later}, by_segment=True)[tp].offset == len(expected)
    with pytest.raises(UnsupportedVersion, match="not for ending"):
        list_offsets(cluster, {tp: 1000})


def test_groups_keep_their_offsets_at_their_coordinator(
    kafka: OldKafka, cluster: Cluster, written: tuple[TopicPartition, list[Message]]
) -> None:
    tp, _ = written
    commit_offsets(cluster, "ours", {tp: 33}, metadata="m")
    assert {one: c.offset for one, c in committed_offsets(cluster, "ours").items()} == {tp: 33}
    assert committed_offsets(cluster, "nobody", [tp]) == {}
    if kafka.version.startswith("0.8"):
        with pytest.raises(UnsupportedVersion, match="does not serve LIST_GROUPS"):
            list_groups(cluster)
    else:
        assert list_groups(cluster) == []


def test_looking_for_a_topic_does_not_make_it(
    cluster: Cluster, written: tuple[TopicPartition, list[Message]]
) -> None:
    # By itself the broker makes whatever it is asked for.
    for _ in range(2):
        found = cluster.metadata([written[0].topic, "not-there"], refresh=True).topics
        assert found["not-there"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(found[written[0].topic].partitions) == 1


def test_an_unknown_kind_of_broker_is_an_error(kafka: OldKafka) -> None:
    config = ConsumerConfig(kafka.bootstrap_servers, connection_setup_timeout_ms=500, request_timeout_ms=600)
    cluster = Cluster(config)
    if kafka.version.startswith("0.10"):
        assert cluster.metadata([]).brokers == {1: ("127.0.0.1", kafka.port)}
    else:
        with pytest.raises(ConnectionLost, match=r"broker\.version\.fallback"):
            cluster.metadata([])
    cluster.close()


def test_a_broker_that_never_answers_is_given_up_and_taken_for_what_it_is_said_to_be(kafka: OldKafka) -> None:
    cluster = Cluster(
        ConsumerConfig(
            kafka.bootstrap_servers, broker_version_fallback=kafka.version, connection_setup_timeout_ms=1000
        )
    )
    assert cluster.metadata([]).brokers == {1: ("127.0.0.1", kafka.port)}
    cluster.close()


def test_spark_reads_it(
    spark: Any, kafka: OldKafka, told: dict[str, object], written: tuple[TopicPartition, list[Message]]
) -> None:
    tp, expected = written
    reader = spark.read.format("kafkalog").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    for name, value in told.items():
        reader = reader.option(f"kafka.{name}", str(value))
    assert_rows(
        reader.option("subscribe", tp.topic).load().select("offset", "key", "value"),
        "offset bigint, key binary, value binary",
        [(offset, m.key, m.value) for offset, m in enumerate(expected)],
    )


@pytest.fixture(scope="module")
def ours(zookeeper: ZooKeeperServer) -> Iterator[EmbeddedBroker]:
    with start_broker({"zookeeper.connect": f"{zookeeper.connect}/ours", "log.retention.ms": -1}) as broker:
        yield broker


_topics = (f"mirrored-{number}" for number in itertools.count())


def mirrored(properties: dict[str, object], topic: str) -> None:
    """Run a mirror until it has read `MESSAGES`, and stop it: what it was told of is at the target then."""
    own = {"sources": "one", "whitelist": topic, "source.one.groupid": "mirror", "source.one.protocol": "0.8"}
    prompt = {"source.one.fetcher.backoff.ms": 20, "source.one.rebalance.backoff.ms": 100}
    with Mirror(mirror_config({**own, **prompt, **properties}, source="test")).start() as mirror:
        until(lambda: mirror.progress()[0].message_count == len(MESSAGES))


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_an_old_cluster_is_mirrored_to_a_new_one(
    kafka: OldKafka, told: dict[str, object], ours: EmbeddedBroker, storage: str
) -> None:
    topic = next(_topics)
    writer = OurProducer("v1" if kafka.magic else None, told)
    writer.produce(kafka.bootstrap_servers, topic, 0, MESSAGES, "gzip", idempotent=False)
    source = {"zookeeper.connect": kafka.zookeeper, "zookeeper.prefix": "/", "offsets.storage": storage}
    properties: dict[str, object] = {
        f"source.one.{name}": value for name, value in {**source, **told}.items()
    }
    mirrored({**properties, "target.bootstrap.servers": ours.bootstrap_servers}, topic)
    found = OurCommandLine().consume(ours.bootstrap_servers, topic, 0, 0, len(MESSAGES))
    assert [(m.key, m.value) for m in found] == [(m.key, m.value) for m in MESSAGES]
    if kafka.magic:
        assert found == MESSAGES


def test_a_new_cluster_is_mirrored_to_an_old_one(
    kafka: OldKafka, told: dict[str, object], ours: EmbeddedBroker, zookeeper: ZooKeeperServer
) -> None:
    topic = next(_topics)
    with_headers = [m._replace(headers=(("h", b"x"),)) for m in MESSAGES]
    OurProducer("v2").produce(ours.bootstrap_servers, topic, 0, with_headers, "zstd", idempotent=True)
    properties: dict[str, object] = {f"target.{name}": value for name, value in told.items()}
    properties |= {
        "source.one.zookeeper.connect": f"{zookeeper.connect}/ours",
        "target.bootstrap.servers": kafka.bootstrap_servers,
    }
    if kafka.magic:
        properties["target.message.format"] = "v1"
    mirrored(properties, topic)
    found = OurCommandLine(told).consume(kafka.bootstrap_servers, topic, 0, 0, len(MESSAGES))
    assert found == as_told(MESSAGES, kafka.magic)
