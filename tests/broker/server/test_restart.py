"""What a broker still knows after a stop, and after a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafkalog_broker.embedded import BrokerNotStarted, EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from pyspark_kafkalog.protocol.api.configs import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ResourceType,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataResponse
from pyspark_kafkalog.protocol.api.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.protocol.raw_client import RawClient, batch


def stop_and_start(broker: EmbeddedBroker) -> None:
    broker.restart()


def kill_and_start(broker: EmbeddedBroker) -> None:
    broker.kill()
    broker.start()


again = pytest.mark.parametrize("again", [stop_and_start, kill_and_start])


WITHOUT_EFFECT = {
    "compression.gzip.level": "5",
    "compression.lz4.level": "12",
    "compression.type": "zstd",
    "compression.zstd.level": "7",
    "delete.retention.ms": "1000",
    "follower.replication.throttled.replicas": "*",
    "leader.replication.throttled.replicas": "0:1,1:1",
    "local.retention.bytes": "-1",
    "local.retention.ms": "5",
    "max.compaction.lag.ms": "3000",
    "message.downconversion.enable": "false",
    "message.timestamp.difference.max.ms": "4000",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "2000",
    "preallocate": "true",
    "remote.storage.enable": "false",
    "segment.jitter.ms": "10",
    "unclean.leader.election.enable": "true",
}
"""Properties of Kafka's that are kept and shown only."""


def metadata(client: RawClient) -> MetadataResponse:
    response: MetadataResponse = client.ask(MetadataRequest())
    return response


@again
def test_topics_ids_configs_and_records_stay(again: Callable[[EmbeddedBroker], None]) -> None:
    resource = DescribeConfigsRequest((DescribeConfigsResource(ResourceType.TOPIC, "a"),))
    with start_broker() as broker:
        with RawClient(broker.port) as client:
            properties = {"retention.ms": "123456789", "max.message.bytes": "5000"} | WITHOUT_EFFECT
            assert client.create_topic("a", 2, properties).error_code == ErrorCode.NONE
            client.create_topic("b")
            client.create_topic("gone")
            client.ask(CreatePartitionsRequest((CreatePartitionsTopic("b", 3),), timeout_ms=1000))
            client.ask(DeleteTopicsRequest((DeleteTopicState(name="gone"),)))
            for i in range(5):
                client.produce("a", batch(b"%d" % i), i % 2)
            before, configs = metadata(client), client.ask(resource)
            shown = {c.name: (c.value, c.config_source) for c in configs.results[0].configs}
            for name, value in properties.items():
                assert shown[name] == (value, ConfigSource.TOPIC_CONFIG)
            records = [client.read("a", 0, p) for p in (0, 1)]
        port = broker.port
        again(broker)
        assert broker.port == port
        with RawClient(broker.port) as client:
            after = metadata(client)
            assert (after.cluster_id, after.brokers) == (before.cluster_id, before.brokers)
            assert {t.name: t for t in after.topics} == {t.name: t for t in before.topics}
            assert client.ask(resource) == configs
            assert [client.read("a", 0, p) for p in (0, 1)] == records
            assert client.produce("a", batch(b"next")).base_offset == 3
            assert client.produce("a", batch(b"x" * 6000)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_bad_property_is_named() -> None:
    with pytest.raises(BrokerNotStarted, match=r"num\.partitions"):
        start_broker(**{"num.partitions": "many"})


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_the_directory_is_not_a_property(name: str) -> None:
    with pytest.raises(InvalidConfig, match="data_dir"):
        start_broker({name: "/somewhere"})
