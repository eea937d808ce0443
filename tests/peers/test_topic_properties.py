"""The properties that a topic may be created with, at Apache Kafka and here."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from pyspark_kafkalog.protocol.api.describe_configs import ResourceType as Kind
from tests.broker.server.test_restart import WITHOUT_EFFECT
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.protocol.raw_client import RawClient

OTHER_DEFAULTS = {"flush.ms", "message.format.version"}
"""Ours flushes, for it has no replicas, and keeps every format as it comes."""
LATER = {"message.timestamp.after.max.ms"}
"""An hour here as in Kafka 4, without bound in 3.9."""
OURS = {"generation"}
NOT_HERE = {"remote.log.copy.disable", "remote.log.delete.on.disable"}


def _described(servers: str, topic: str) -> dict[str, DescribeConfigsResourceResult]:
    with RawClient(int(servers.rpartition(":")[2])) as client:
        client.create_topic(topic)
        request = DescribeConfigsRequest((DescribeConfigsResource(Kind.TOPIC, topic),))
        result = client.ask(request).results[0]
    assert result.error_code == ErrorCode.NONE
    return {config.name: config for config in result.configs}


def test_topics_have_the_properties_types_and_defaults_of_kafkas(
    apache_kafka: ApacheKafka, own_broker: EmbeddedBroker, topic_name: str
) -> None:
    kafka = _described(apache_kafka.bootstrap_servers, topic_name)
    ours = _described(own_broker.bootstrap_servers, topic_name)
    assert kafka.keys() - ours.keys() <= NOT_HERE
    assert ours.keys() - kafka.keys() == OURS
    shared = kafka.keys() & ours.keys()
    assert {n: ours[n].config_type for n in shared} == {n: kafka[n].config_type for n in shared}
    same = shared - OTHER_DEFAULTS - LATER
    assert {n: ours[n].value for n in same} == {n: kafka[n].value for n in same}


def test_what_kafka_takes_for_a_topic_is_taken_here(
    apache_kafka: ApacheKafka, own_broker: EmbeddedBroker, topic_name: str
) -> None:
    for servers in (apache_kafka.bootstrap_servers, own_broker.bootstrap_servers):
        admin = AdminClient({"bootstrap.servers": servers})
        (made,) = admin.create_topics([NewTopic(topic_name, 1, 1, config=WITHOUT_EFFECT)]).values()
        made.result(30)
        resource = ConfigResource(ResourceType.TOPIC, topic_name)
        told = admin.describe_configs([resource])[resource].result(30)
        assert {name: told[name].value for name in WITHOUT_EFFECT} == WITHOUT_EFFECT
