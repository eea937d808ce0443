"""Properties of a topic changed by the admin interfaces of foreign clients."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.client import admin as own_admin
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import WAIT_SECONDS


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    """A topic that sets ``segment.ms`` for itself."""
    CLIENTS[0].create_topic(servers, topic_name, 1)
    own_admin.alter_topic_configs(servers, topic_name, set={"segment.ms": "5000"})
    return topic_name


def own(servers: str, topic: str) -> dict[str, str | None]:
    """What the topic sets for itself."""
    found = own_admin.describe_configs(servers, topic=topic)
    return {name: entry.value for name, entry in found.items() if not entry.is_default}


def test_librdkafka_sets_appends_and_deletes(servers: str, topic: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    changes = [
        ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("segment.ms", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": servers})
    (done,) = admin.incremental_alter_configs([resource]).values()
    assert done.result(WAIT_SECONDS) is None
    assert own(servers, topic) == {"retention.ms": "60000", "cleanup.policy": "delete,compact"}


def test_librdkafka_replaces_all_and_gets_the_reason_of_a_refusal(servers: str, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": servers})
    wrong = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "soon"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        (refused,) = admin.alter_configs([wrong]).values()
    with pytest.raises(KafkaException) as raised:
        refused.result(WAIT_SECONDS)
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert own(servers, topic) == {"segment.ms": "5000"}
    right = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        (done,) = admin.alter_configs([right]).values()
    assert done.result(WAIT_SECONDS) is None
    assert own(servers, topic) == {"retention.ms": "7"}


def test_kafka_python_changes_a_property(servers: str, topic: str) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"})]
        )
    finally:
        admin.close()
    assert own(servers, topic)["retention.ms"] == "60000"
