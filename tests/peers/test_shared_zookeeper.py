"""Users and ACLs in a ZooKeeper that Apache Kafka 3.9 uses too, over TLS and with a login: each sees what the
other wrote, Kafka's tools as well, and the nodes are equally protected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import (
    ResourceType as Kind,
)
from kazoo.client import KazooClient

from kafkalog_broker.security.file_stores import CredentialChange
from kafkalog_broker.security.zookeeper_stores import ZooKeeperAcls, ZooKeeperUsers
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from pyspark_kafkalog.security.scram import ScramCredential
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession, session_of
from tests.support.foreign.apache_kafka import QUICK, ApacheKafka, free_ports, run_tool
from tests.support.foreign.secure_kafka import SCRAM
from tests.support.network.certificates import Authority
from tests.support.until import until
from tests.support.zookeeper import server_in

pytestmark = pytest.mark.peers

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
LOGIN = f'{MODULE} required username="kafka" password="kafka-secret";'
SHA_512 = "SCRAM-SHA-512"
EVERYTHING = AclBindingFilter(
    Kind.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


class Shared(NamedTuple):
    """Kafka and our stores, at nodes below ``/kafka``; ``tls`` are properties for a tool."""

    kafka: ApacheKafka
    client_servers: str
    session: ZooKeeperSession
    users: ZooKeeperUsers
    acls: ZooKeeperAcls
    plain_connect: str
    place: dict[str, str]
    java_option: str
    admin: AdminClient

    def logs_in(self, user: str) -> bool:
        client = AdminClient(
            {
                "bootstrap.servers": self.client_servers, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": SHA_512, "sasl.username": user, "sasl.password": f"{user}-secret",
            }
        )  # fmt: skip
        try:
            client.list_topics(timeout=5)
        except KafkaException:
            return False
        return True

    def of_kafka(self) -> set[tuple[Any, ...]]:
        """All ACLs, as its broker has them."""
        return {
            (acl.restype.value, acl.name, acl.resource_pattern_type.value, acl.principal, acl.host,
             acl.operation.value, acl.permission_type.value)
            for acl in self.admin.describe_acls(EVERYTHING).result(30)
        }  # fmt: skip

    def ours(self) -> set[tuple[Any, ...]]:
        return {(int(a[0]), a[1], int(a[2]), a[3], a[4], int(a[5]), int(a[6])) for a in self.acls.all}


def credential(user: str) -> ScramCredential:
    return ScramCredential.of_password(SHA_512, f"{user}-secret", salt=b"salt", iterations=4096)


def acl(
    kind: ResourceType, name: str, operation: Operation, *, prefixed: bool = False, allow: bool = True
) -> Acl:
    return Acl(
        kind, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL, "User:CN=a b,O=Lab",
        "10.0.0.1", operation, Permission.ALLOW if allow else Permission.DENY,
    )  # fmt: skip


BEFORE = [
    *(acl(ResourceType.TOPIC, "all", operation) for operation in list(Operation)[1:]),
    acl(ResourceType.TOPIC, "*", Operation.READ, allow=False),
    acl(ResourceType.GROUP, "g:1", Operation.READ, prefixed=True),
    acl(ResourceType.TRANSACTIONAL_ID, "x y", Operation.WRITE),
    acl(ResourceType.TRANSACTIONAL_ID, "x y", Operation.WRITE, prefixed=True),
    acl(ResourceType.CLUSTER, "kafka-cluster", Operation.IDEMPOTENT_WRITE),
]


@pytest.fixture(scope="module")
def shared(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    place = tmp_path_factory.mktemp("shared")
    authority = Authority.made(place / "certificates")
    (place / "jaas.conf").write_text(
        f'Server {{ {MODULE} required user_kafka="kafka-secret"; }};\nClient {{ {LOGIN} }};\n'
    )
    secured = {
        "secure_client_port": 0,
        "ssl_key_store_location": str(authority.issue("server", "127.0.0.1", "localhost")),
        "ssl_trust_store_location": str(authority.file),
        "login_config": str(place / "jaas.conf"),
    }
    java_option = f"-Djava.security.auth.login.config={place / 'jaas.conf'}"
    inside, outside = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{inside},CLIENT://127.0.0.1:{outside}"
    with server_in(place / "zookeeper", **secured) as server:
        tls = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": str(authority.file),
            "zookeeper.ssl.truststore.type": "PEM",
        }
        given = tls | {
            "zookeeper.connect": server.secure_connect,
            "zookeeper.sasl.jaas.config": LOGIN,
            "zookeeper.set.acl": "true",
        }
        with session_of(parse(ZooKeeperConfig, given, source="test")) as session:
            users, acls = ZooKeeperUsers(session, JsonLayout()), ZooKeeperAcls(session, JsonLayout())
            users.connect()
            acls.connect()
            users.change([CredentialChange("alice", SHA_512, credential("alice"))])
            acls.change(BEFORE, ())
            kafka = ApacheKafka(
                kafka_jars,
                place / "kafka",
                zookeeper=f"{server.secure_connect}/kafka",
                options=(*QUICK, java_option),
                **tls,
                **{
                    "zookeeper.set.acl": "true",
                    "listeners": listeners,
                    "advertised.listeners": listeners,
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
                    "listener.name.client.sasl.enabled.mechanisms": SHA_512,
                    "listener.name.client.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
                    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                    "super.users": "User:ANONYMOUS",
                },
            )
            kafka.bootstrap_servers = f"127.0.0.1:{inside}"
            try:
                kafka.start()
                servers = {"bootstrap.servers": kafka.bootstrap_servers}
                # It has started before its controller has told it that it is there.
                until(lambda: AdminClient(servers).list_topics(timeout=5).brokers)
                yield Shared(
                    kafka, f"127.0.0.1:{outside}", session, users, acls, server.connect,
                    tls | {"zookeeper.connect": f"{server.secure_connect}/kafka"}, java_option,
                    AdminClient(servers),
                )  # fmt: skip
            finally:
                kafka.stop()


def test_kafka_has_what_we_wrote_before_and_while_it_runs(shared: Shared) -> None:
    assert shared.of_kafka() == shared.ours()
    assert len(shared.ours()) == len(BEFORE)
    assert shared.logs_in("alice")
    shared.users.change(
        [CredentialChange("bob", SHA_512, credential("bob")), CredentialChange("alice", SHA_512, None)]
    )
    until(lambda: shared.logs_in("bob") and not shared.logs_in("alice"))
    added = (
        acl(ResourceType.TOPIC, "later", Operation.READ),
        acl(ResourceType.TOPIC, "p-", Operation.READ, prefixed=True),
    )
    shared.acls.change(added, BEFORE[-1:])
    until(lambda: shared.of_kafka() == shared.ours())
    assert len(shared.ours()) == len(BEFORE) + 1


def test_we_have_what_kafka_wrote(shared: Shared) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    made = UserScramCredentialUpsertion("c@r/l *~+ü", info, b"carol-secret", b"salt")
    shared.admin.alter_user_scram_credentials([made])["c@r/l *~+ü"].result(30)
    expected = ScramCredential.of_password(SHA_512, "carol-secret", salt=b"salt", iterations=8192)
    until(lambda: shared.users.all().get("c@r/l *~+ü") == {SHA_512: expected})
    bindings = [
        AclBinding(
            Kind.TOPIC, "theirs", pattern, "User:z", "*", AclOperation.ALTER_CONFIGS, AclPermissionType.DENY
        )
        for pattern in (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED)
    ]
    for future in shared.admin.create_acls(bindings).values():
        future.result(30)
    until(lambda: len([a for a in shared.acls.all if a.name == "theirs"]) == 2)
    assert shared.of_kafka() == shared.ours()
    shared.admin.delete_acls([EVERYTHING])[EVERYTHING].result(30)
    until(lambda: not shared.acls.all)
    gone = UserScramCredentialDeletion("c@r/l *~+ü", ScramMechanism.SCRAM_SHA_512)
    shared.admin.alter_user_scram_credentials([gone])["c@r/l *~+ü"].result(30)
    until(lambda: "c@r/l *~+ü" not in shared.users.all())


def test_we_have_what_kafkas_tools_wrote_into_zookeeper(
    kafka_jars: Path, shared: Shared, tmp_path: Path
) -> None:
    """As an operator makes the first user: without a broker."""
    tls = tmp_path / "tls.properties"
    tls.write_text("".join(f"{name}={value}\n" for name, value in shared.place.items()))
    connect = shared.place["zookeeper.connect"]
    run_tool(
        kafka_jars, "kafka.admin.ConfigCommand", "--zookeeper", connect, "--zk-tls-config-file", tls,
        "--alter", "--add-config", f"{SHA_512}=[iterations=4096,password=dora-secret]",
        "--entity-type", "users", "--entity-name", "dora", options=(*QUICK, shared.java_option),
    )  # fmt: skip
    until(lambda: "dora" in shared.users.all())
    assert shared.logs_in("dora")
    run_tool(
        kafka_jars, "kafka.admin.AclCommand", "--authorizer", "kafka.security.authorizer.AclAuthorizer",
        "--authorizer-properties", f"zookeeper.connect={connect}", "--zk-tls-config-file", tls, "--force",
        "--add", "--allow-principal", "User:dora", "--operation", "Describe", "--group", "by-tool",
        options=(*QUICK, shared.java_option),
    )  # fmt: skip
    until(lambda: "by-tool" in {each.name for each in shared.acls.all})


def test_nodes_of_both_are_equally_protected(shared: Shared) -> None:
    options = {"mechanism": "DIGEST-MD5", "username": "kafka", "password": "kafka-secret"}
    client = KazooClient(shared.plain_connect, sasl_options=options)
    client.start(10)
    try:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        theirs = UserScramCredentialUpsertion("theirs", info, b"secret")
        shared.admin.alter_user_scram_credentials([theirs])["theirs"].result(30)
        shared.users.change([CredentialChange("ours", SHA_512, credential("ours"))])
        paths = (
            "/config/users/ours", "/config/users/theirs", "/config/users", "/config/changes",
            "/config/topics", "/kafka-acl/Topic", "/kafka-acl-changes", "/brokers/ids", "/consumers",
        )  # fmt: skip
        access = {path: set(client.get_acls(f"/kafka{path}")[0]) for path in paths}
    finally:
        client.stop()
        client.close()
    assert access["/config/users/ours"] == access["/config/users/theirs"] == access["/config/users"]
    assert access["/kafka-acl/Topic"] == access["/config/changes"] == access["/brokers/ids"]
    assert access["/kafka-acl-changes"] == access["/config/topics"]
    assert {each.id.scheme for each in access["/config/users/ours"]} == {"sasl"}
    assert {each.id.scheme for each in access["/consumers"]} == {"world"}
