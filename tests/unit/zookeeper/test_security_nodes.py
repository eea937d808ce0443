"""Users and ACLs in znodes: what Apache Kafka 3.9 wrote is read, and what is none is refused."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    Resource,
    SecurityNodes,
    read_acl_change,
    read_acls,
    read_user,
    read_user_change,
    write_acl_change,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode

TOPIC = Resource(ResourceType.TOPIC, "t", PatternType.LITERAL)


def test_what_kafka_wrote_is_read() -> None:
    data = (
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"DescribeConfigs",'
        b'"host":"10.0.0.1"}]}'
    )
    assert read_acls(TOPIC, data) == {
        Acl(*TOPIC, "User:a", "10.0.0.1", Operation.DESCRIBE_CONFIGS, Permission.DENY)
    }
    assert read_user_change(b'{"version":2,"entity_path":"users/a%2Fb"}') == "a/b"
    assert read_user_change(b'{"version":1,"entity_type":"users","entity_name":"a"}') == "a"
    for other in (b"topics/t", b"users/a/clients/c", b"users/"):
        assert read_user_change(b'{"version":2,"entity_path":"%s"}' % other) is None


@pytest.mark.parametrize("pattern_type", [PatternType.LITERAL, PatternType.PREFIXED])
def test_a_change_names_its_resource(pattern_type: PatternType) -> None:
    """A transactional id has a word of its own in each place, and names may have a colon."""
    resource = Resource(ResourceType.TRANSACTIONAL_ID, "a:b", pattern_type)
    assert read_acl_change(pattern_type, write_acl_change(resource)) == resource
    assert SecurityNodes(JsonLayout("/")).acls(resource).endswith("/TransactionalId/a:b")


@pytest.mark.parametrize(
    "entries",
    [b"{}", b"[1]", b'[{"principal":"User:a"}]', b'[{"principal":1,"host":"*","operation":"Read"}]'],
)
def test_invalid_acls_are_refused(entries: bytes) -> None:
    with pytest.raises(MalformedNode, match="the ACLs of Topic 't'"):
        read_acls(TOPIC, b'{"version":1,"acls":%s}' % entries)


def test_a_user_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(MalformedNode) as refused:
        read_user(b'{"config":"stored_key=secret"}')
    assert "secret" not in str(refused.value)
