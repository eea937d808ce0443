"""ACLs by the administration clients of confluent-kafka and kafka-python, and what their users then get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka.admin
import kafka.errors
import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker

PASSWORD = "not-very-secret"
USERS = ("admin", "alice", "bob")
_JAAS = "PlainLoginModule required " + " ".join(f'user_{name}="{PASSWORD}"' for name in USERS) + ";"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin",
    }
    with start_broker(settings) as running:
        yield running


def of(broker: EmbeddedBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    } | more


@pytest.mark.long("a broker for each kind of login")
def test_librdkafka_makes_acls_and_its_users_get_what_they_say(broker: EmbeddedBroker) -> None:
    admin = confluent_kafka.admin.AdminClient(of(broker, "admin"))
    for future in admin.create_topics([confluent_kafka.admin.NewTopic("orders", 1)]).values():
        future.result(90)
    kinds, patterns = confluent_kafka.admin.ResourceType, confluent_kafka.admin.ResourcePatternType
    operations, permissions = confluent_kafka.admin.AclOperation, confluent_kafka.admin.AclPermissionType
    binding, allow = confluent_kafka.admin.AclBinding, permissions.ALLOW
    wanted = [
        binding(kinds.TOPIC, "ord", patterns.PREFIXED, "User:alice", "*", operations.WRITE, allow),
        binding(kinds.TOPIC, "orders", patterns.LITERAL, "User:bob", "*", operations.READ, allow),
        binding(kinds.GROUP, "g", patterns.LITERAL, "User:bob", "*", operations.READ, allow),
    ]
    for future in admin.create_acls(wanted).values():
        future.result(90)
    everything = confluent_kafka.admin.AclBindingFilter(
        kinds.ANY, None, patterns.ANY, None, None, operations.ANY, permissions.ANY
    )
    assert set(admin.describe_acls(everything).result(90)) == set(wanted)

    assert produced(broker, "alice") is None
    assert produced(broker, "bob") == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert read(broker, "bob", "g") == b"v"
    assert read(broker, "alice", "g") == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    assert sorted(admin.list_topics(timeout=60).topics) == ["__consumer_offsets", "orders"]
    nobody = confluent_kafka.admin.AdminClient(of(broker, "bob"))
    assert sorted(nobody.list_topics(timeout=60).topics) == ["orders"]
    with pytest.raises(confluent_kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        next(iter(nobody.create_acls(wanted[:1]).values())).result(90)

    (future,) = admin.delete_acls([everything]).values()
    assert set(future.result(90)) == set(wanted)


def produced(broker: EmbeddedBroker, user: str) -> int | None:
    """The code of the error; None if it was stored. Who may write nothing at all gets no producer id."""
    codes: list[int | None] = []
    producer = confluent_kafka.Producer(of(broker, user, **{"enable.idempotence": user == "alice"}))
    producer.produce("orders", b"v", on_delivery=lambda e, _: codes.append(e.code() if e else None))
    assert producer.flush(15) == 0
    (code,) = codes
    return code


def read(broker: EmbeddedBroker, user: str, group: str) -> bytes | int:
    """The first record, or the code of the error."""
    settings = {"group.id": group, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(of(broker, user, **settings))
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(15)
        assert message is not None
        error = message.error()
        return message.value() if error is None else error.code()
    finally:
        consumer.close()


def test_kafka_python_makes_lists_and_removes_acls(broker: EmbeddedBroker) -> None:
    admin = kafka.admin.KafkaAdminClient(
        bootstrap_servers=f"127.0.0.1:{broker.port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="admin",
        sasl_plain_password=PASSWORD,
    )
    acl = kafka.admin.ACL(
        principal="User:dora",
        host="*",
        operation=kafka.admin.ACLOperation.WRITE,
        permission_type=kafka.admin.ACLPermissionType.ALLOW,
        resource_pattern=kafka.admin.ResourcePattern(
            kafka.admin.ResourceType.TOPIC, "t", kafka.admin.ACLResourcePatternType.PREFIXED
        ),
    )
    of_dora = kafka.admin.ACLFilter(
        principal="User:dora",
        host=None,
        operation=kafka.admin.ACLOperation.ANY,
        permission_type=kafka.admin.ACLPermissionType.ANY,
        resource_pattern=kafka.admin.ResourcePatternFilter(
            kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY
        ),
    )
    try:
        admin.create_acls([acl])
        found, _ = admin.describe_acls(of_dora)
        assert found == [acl]
        ((_, removed, _),) = admin.delete_acls([of_dora])
        assert removed == [acl]
        assert admin.describe_acls(of_dora)[0] == []
    finally:
        admin.close()
