"""Users and ACLs that brokers share in ZooKeeper: what they write, and what they take over from others."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import BrokerNotStarted, EmbeddedBroker, start_broker
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from kafkalog_broker.security.zookeeper_stores import ZooKeeperAcls, ZooKeeperUsers
from pyspark_kafkalog.errors import InvalidRequest, ServerError
from pyspark_kafkalog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from pyspark_kafkalog.security.scram import ScramCredential
from pyspark_kafkalog.zookeeper.cluster_nodes import write_acls
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.manual_clock import ManualClock
from tests.support.until import until
from tests.support.zookeeper import expire, patient_session

LAYOUT = JsonLayout()
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
CREDENTIAL = ScramCredential.of_salted(SHA_512, b"s" * 64, b"salt", 8192)


def reading(topic: str, user: str = "User:a", pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(ResourceType.TOPIC, topic, pattern, user, "*", Operation.READ, Permission.ALLOW)


def acls_of(session: ZooKeeperSession, clock: ManualClock | None = None) -> ZooKeeperAcls:
    made = ZooKeeperAcls(session, LAYOUT, clock) if clock else ZooKeeperAcls(session, LAYOUT)
    made.connect()
    return made


def users_of(session: ZooKeeperSession) -> ZooKeeperUsers:
    made = ZooKeeperUsers(session, LAYOUT)
    made.connect()
    return made


def value(session: ZooKeeperSession, path: str) -> object:
    node = session.read(path)
    return None if node is None else json.loads(node.data)


def test_users_are_written_as_kafka_writes_them_and_seen_by_others(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    ours, theirs = users_of(session), users_of(other)
    node = "/kafka/config/users/a%2Fb%20%2A%7E"
    session.create(node, json.dumps({"version": 1, "config": {"producer_byte_rate": "9"}}).encode())
    ours.change([CredentialChange("a/b *~", SHA_512, CREDENTIAL), CredentialChange("c", SHA_256, CREDENTIAL)])
    assert ours.all() == {"a/b *~": {SHA_512: CREDENTIAL}, "c": {SHA_256: CREDENTIAL}}
    until(lambda: theirs.all() == ours.all())
    text = f"salt=c2FsdA==,stored_key={_key(CREDENTIAL.stored_key)},server_key={_key(CREDENTIAL.server_key)},"
    assert value(session, node) == {
        "version": 1, "config": {"producer_byte_rate": "9", SHA_512: f"{text}iterations=8192"}
    }  # fmt: skip
    changes = session.children("/kafka/config/changes")
    assert changes == ["config_change_0000000000", "config_change_0000000001"]
    assert value(session, f"/kafka/config/changes/{changes[0]}") == {
        "version": 2, "entity_path": "users/a%2Fb%20%2A%7E"
    }  # fmt: skip
    theirs.change([CredentialChange("c", SHA_256, None)])
    until(lambda: ours.all() == {"a/b *~": {SHA_512: CREDENTIAL}})
    assert value(session, "/kafka/config/users/c") == {"version": 1, "config": {}}


def test_brokers_have_the_same_secret_for_unknown_users(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    secret = users_of(session).secret(b"of the first broker's file")
    assert secret == b"of the first broker's file"
    assert users_of(other).secret() == users_of(other).secret(b"of another's") == secret
    other.write("/kafka/config/unknown_users_secret", b'{"version":1,"secret":"no digits"}')
    with pytest.raises(MalformedNode, match="the secret for unknown users cannot be") as e:
        users_of(session).secret()
    assert "no digits" not in str(e.value)


def _key(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_acls_are_written_as_kafka_writes_them_and_seen_by_others(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    ours, theirs = acls_of(session), acls_of(other)
    wanted = {reading("t"), reading("t", "User:b"), reading("p-", pattern=PatternType.PREFIXED)}
    ours.change(wanted, ())
    assert ours.all == wanted
    until(lambda: theirs.all == wanted)
    entries = [
        {"principal": user, "permissionType": "Allow", "operation": "Read", "host": "*"}
        for user in ("User:a", "User:b")
    ]
    assert value(session, "/kafka/kafka-acl/Topic/t") == {"version": 1, "acls": entries}
    extended = "/kafka/kafka-acl-extended"
    assert value(session, f"{extended}/prefixed/Topic/p-") == {"version": 1, "acls": entries[:1]}
    node = session.read("/kafka/kafka-acl-changes/acl_changes_0000000000")
    assert node is not None
    assert node.data == b"TOPIC:t"
    assert value(session, f"{extended}-changes/acl_changes_0000000000") == {
        "version": 1, "resourceType": "TOPIC", "name": "p-", "patternType": "PREFIXED"
    }  # fmt: skip
    theirs.change((), {reading("t"), reading("t", "User:b")})
    until(lambda: ours.all == {reading("p-", pattern=PatternType.PREFIXED)})
    assert session.read("/kafka/kafka-acl/Topic/t") is None


def test_changes_of_one_resource_at_two_brokers_are_all_kept(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    """Each reads the node, and writes it if nobody else has meanwhile."""
    stores = [acls_of(session), acls_of(other)]
    wanted = [[reading("t", f"User:{store}-{number}") for number in range(25)] for store in range(2)]

    def change(store: int) -> None:
        for each in wanted[store]:
            stores[store].change([each], ())

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(change, range(2)))
    for store in stores:
        until(lambda store=store: store.all == {*wanted[0], *wanted[1]})


def test_an_acl_that_another_broker_removed_unseen_is_added_again(session: ZooKeeperSession) -> None:
    """What was read last does not decide what is written: the answer would be a lie."""
    acls = acls_of(session)
    acls.change([reading("t")], ())
    session.delete("/kafka/kafka-acl/Topic/t")  # and nobody is told
    acls.change([reading("t")], ())
    assert session.read("/kafka/kafka-acl/Topic/t") is not None


def test_an_expired_session_reads_everything_again(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    acls, users = acls_of(session), users_of(session)
    other.create("/kafka/kafka-acl/Topic/t", b'{"version":1,"acls":[]}')
    other.write(
        "/kafka/kafka-acl/Group/g",
        b'{"acls":[{"host":"*","permissionType":"Deny","operation":"IdempotentWrite","principal":"User:x"}]}',
    )
    other.create("/kafka/config/users/u", json.dumps({"config": {SHA_256: CREDENTIAL.text()}}).encode())
    expire(session)
    found = Acl(
        ResourceType.GROUP,
        "g",
        PatternType.LITERAL,
        "User:x",
        "*",
        Operation.IDEMPOTENT_WRITE,
        Permission.DENY,
    )
    until(lambda: acls.all == {found} and users.all() == {"u": {SHA_256: CREDENTIAL}})


def test_acls_that_cannot_be_read_stop_the_start_and_change_nothing_later(
    session: ZooKeeperSession, other: ZooKeeperSession, caplog: pytest.LogCaptureFixture
) -> None:
    acls = acls_of(session)
    acls.change([reading("t")], ())
    other.write("/kafka/kafka-acl/Topic/t", b'{"version":1,"acls":[{"principal":"User:a"}]}')
    other.write("/kafka/kafka-acl/Topic/u", write_acls([reading("u")]))
    for number, name in enumerate((b"TOPIC:t", b"\xff", b"TOPIC:u")):
        other.create(f"/kafka/kafka-acl-changes/acl_changes_900000000{number}", name)
    until(lambda: acls.all == {reading("t"), reading("u")})
    assert "the ACLs of Topic 't' (Literal) cannot be" in caplog.text
    with pytest.raises(MalformedNode):
        acls.change([reading("t", "User:b")], ())
    with pytest.raises(MalformedNode):
        acls_of(other)


def test_notes_of_changes_go_when_they_are_old(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    acls = acls_of(other)
    acls.change([reading("a")], ())
    node = other.read("/kafka/kafka-acl-changes/acl_changes_0000000000")
    assert node is not None
    clock = ManualClock(time_ms=node.created_ms + 15 * 60 * 1000 + 1)
    late = acls_of(session, clock)
    until(lambda: not session.children("/kafka/kafka-acl-changes"))
    assert late.all == {reading("a")}


def test_names_that_no_znode_can_have_are_refused(session: ZooKeeperSession) -> None:
    with pytest.raises(InvalidRequest, match="'a/b' cannot be the name of a znode"):
        acls_of(session).change([reading("a/b")], ())


def test_without_zookeeper_a_change_is_refused_with_a_code_that_clients_retry(zookeeper_connect: str) -> None:
    with patient_session(zookeeper_connect) as session:
        users = users_of(session)
        session._connect_ms = 300  # from now on: the start was to wait for its answers
    with pytest.raises(ServerError, match="REQUEST_TIMED_OUT"):
        users.change([CredentialChange("a", SHA_256, CREDENTIAL)])
    assert users.all() == {}


SECURED = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": SHA_512,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SHARED = SECURED | {"zookeeper.allow.unprotected.credentials": True}


def kept_in(directory: Path, user: str) -> SecurityFile:
    """What a broker kept itself so far."""
    directory.mkdir()
    file = SecurityFile([directory], FileSystem())
    file.load()
    credential = ScramCredential.of_password(SHA_512, "secret", salt=b"salt", iterations=4096)
    FileCredentials(file).change([CredentialChange(user, SHA_512, credential)])
    texts = {
        "resourceType": "Topic", "name": "t", "patternType": "Literal", "principal": f"User:{user}",
        "host": "*", "operation": "Describe", "permissionType": "Allow",
    }  # fmt: skip
    file.change(lambda kept: kept._replace(acls=(texts,)))
    return file


def admin(broker: EmbeddedBroker, user: str | None = None) -> AdminClient:
    if user is None:
        return AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    return AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SHA_512,
            "sasl.username": user,
            "sasl.password": "secret",
        }
    )


@pytest.mark.long("ZooKeeper, stopped and started")
def test_brokers_of_one_zookeeper_have_the_same_users_and_acls(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    """The first has some of its own from before, which become everybody's."""
    kept_in(tmp_path / "1", "alice")
    given = SHARED | {"zookeeper.connect": zookeeper_connect}
    with start_broker(given | {"node.id": 1}, data_dir=tmp_path / "1") as first:
        own = json.loads((tmp_path / "1" / "security.json").read_text())
        assert own == {"version": 1, "users": {}, "acls": []}
        with start_broker(given | {"node.id": 2}, data_dir=tmp_path / "2") as second:
            admin(second, "alice").list_topics(timeout=60)
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            bob = UserScramCredentialUpsertion("bob", info, b"secret")
            client = admin(second)
            client.alter_user_scram_credentials([bob])["bob"].result(90)
            until(lambda: admin(first, "bob").list_topics(timeout=60))
        properties = tmp_path / "server.properties"
        lines = (f"{name}={value}" for name, value in given.items())
        properties.write_text("\n".join(lines).replace("=True", "=true"))
        command = [sys.executable, "-m", "kafkalog_broker", "add-user", str(properties), "dora"]
        subprocess.run(command, input="secret\n", text=True, check=True, stdout=subprocess.DEVNULL)
        until(lambda: admin(first, "dora").list_topics(timeout=60))
        first.restart()
        assert admin(first, "bob").list_topics(timeout=60).topics == {}
    kept_in(tmp_path / "3", "carol")
    with pytest.raises(BrokerNotStarted, match="users whose credentials ZooKeeper does not have: carol"):
        start_broker(given | {"node.id": 3}, data_dir=tmp_path / "3")


def test_users_stay_with_their_broker_where_zookeeper_is_not_protected(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    kept_in(tmp_path / "data", "alice")
    with start_broker(
        SECURED | {"zookeeper.connect": zookeeper_connect}, data_dir=tmp_path / "data"
    ) as broker:
        admin(broker, "alice").list_topics(timeout=60)
        own = json.loads((tmp_path / "data" / "security.json").read_text())
        assert (list(own["users"]), own["acls"]) == (["alice"], [])
    with ZooKeeperSession(zookeeper_connect) as session:
        assert session.read("/kafka/config/users") is None
        assert session.read("/kafka/kafka-acl/Topic/t") is not None
