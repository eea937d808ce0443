"""Topics that upgrades have left in old formats: Apache Kafka hands out their v0 and v1 as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import LATEST_TIMESTAMP, TopicPartition
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.foreign.foreign_clients import Confluent
from tests.support.foreign.foreign_face import WAIT_SECONDS, Message, messages
from tests.support.foreign.old_clients import OLD_CODECS, OUR_READERS, Dialect, OurProducer, as_told
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until

VERSIONS = {"0.9.0": 0, "0.10.2": 1, "0.11.0": 2}
"""Of the topic's format, in the order of the upgrades."""

MESSAGES = messages(30)
WITHOUT_HEADERS = [m._replace(headers=()) for m in MESSAGES]
WRITERS = (Dialect(OurProducer("v0"), 0), Dialect(OurProducer("v1"), 1), Dialect(Confluent(), 2))
READERS = (*OUR_READERS, Dialect(Confluent(), 2))
TOPIC = "upgraded"


@pytest.fixture(scope="module")
def servers(
    kafka_jars: Path, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A Kafka that still knows old formats, as none of 3.0 and later does by itself."""
    kafka = ApacheKafka(
        kafka_jars,
        tmp_path_factory.mktemp("kafka"),
        zookeeper=f"{zookeeper.connect}/old-topics",
        inter_broker_protocol_version="2.8",
    )
    try:
        yield kafka.start().bootstrap_servers
    finally:
        kafka.stop()


def upgrade(servers: str, topic: str, version: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("message.format.version", version, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.incremental_alter_configs([change]).values():
        done.result(WAIT_SECONDS)


def created(servers: str) -> bool:
    """Whether the topic could be made: the controller may hear of its broker after the broker serves."""
    try:
        create_topics(servers, [NewTopic(TOPIC, 1)])
    except ServerError as e:
        if e.code != ErrorCode.INVALID_REPLICATION_FACTOR:
            raise
        return False
    return True


@pytest.fixture(scope="module")
def written(servers: str) -> list[Message]:
    """What every writer has written in every codec at every version of the topic, as it can be read."""
    until(lambda: created(servers))
    expected: list[Message] = []
    for version, magic in VERSIONS.items():
        upgrade(servers, TOPIC, version)
        for writer in WRITERS:
            sent = MESSAGES if writer.magic == magic == 2 else WITHOUT_HEADERS
            for codec in OLD_CODECS:
                offsets = writer.client.produce(servers, TOPIC, 0, sent, codec, idempotent=False)
                assert offsets[0] == len(expected)
                expected += as_told(sent, min(writer.magic, magic))
    return expected


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.name)
@pytest.mark.parametrize("start", [0, 77, 500, 1000])
def test_every_record_is_read(servers: str, written: list[Message], reader: Dialect, start: int) -> None:
    left = len(written) - start
    assert reader.client.consume(servers, TOPIC, 0, start, left) == written[start:]


def test_kafka_hands_out_three_formats(servers: str, written: list[Message]) -> None:
    found: dict[int, int] = {}
    offset = 0
    with RawClient(int(servers.split(":")[1])) as client:
        while offset < len(written):
            data = memoryview(bytes(client.fetch(TOPIC, offset, version=11).records or b""))
            for frame in frames(data, start_offset=offset):
                magic = magic_at(data, frame.position)
                found[magic] = found.get(magic, 0) + 1
                offset = frame.next_offset
    assert sorted(found) == [0, 1, 2]
    assert min(found.values()) > 2 * len(WRITERS)


def test_a_topic_without_times_has_no_record_at_a_time(servers: str) -> None:
    create_topics(servers, [NewTopic("timeless", 1, configs={"message.format.version": "0.9.0"})])
    OurProducer("v0").produce(servers, "timeless", 0, WITHOUT_HEADERS, "none", idempotent=False)
    tp = TopicPartition("timeless", 0)
    cluster = Cluster(ConsumerConfig(bootstrap_servers=servers))
    try:
        assert list_offsets(cluster, {tp: MESSAGES[0].timestamp})[tp].offset == -1
        assert list_offsets(cluster, {tp: LATEST_TIMESTAMP})[tp].offset == len(MESSAGES)
    finally:
        cluster.close()
