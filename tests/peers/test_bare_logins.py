"""Logins before Kafka 1.0, whose messages have no headers: old Java clients here, ours at an old broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.errors import AuthenticationFailed, UnsupportedSaslMechanism
from pyspark_kafkalog.security.scram import ScramCredential
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.client.login_rounds import read, refused
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.foreign_face import messages
from tests.support.foreign.old_clients import as_told
from tests.support.foreign.old_java import OldJava
from tests.support.foreign.old_kafka import OldKafka
from tests.support.foreign.secure_kafka import PASSWORD, PLAIN, SCRAM, USER

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MESSAGES = [m._replace(headers=()) for m in messages(20)]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Our broker, with logins; its first listener has none."""
    data = tmp_path_factory.mktemp("data")
    FileCredentials(SecurityFile([data], FileSystem())).change(
        CredentialChange(
            USER, name, ScramCredential.of_password(name, PASSWORD, salt=b"0123456789", iterations=4096)
        )
        for name in SCRAMS
    )
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAMS)),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_{USER}="{PASSWORD}";',
    }
    with start_broker(properties, data_dir=data) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "mechanism"),
    [("0.10.2.2", "PLAIN"), ("0.10.2.2", "SCRAM-SHA-512"), ("0.11.0.3", "SCRAM-SHA-256")],
)
def test_old_java_logs_in_and_is_served(
    own: EmbeddedBroker, tmp_path: Path, topic_name: str, version: str, mechanism: str
) -> None:
    create_topics(own.bootstrap_servers, [NewTopic(topic_name, 1)])
    servers = f"127.0.0.1:{own.port_of('SASL_PLAINTEXT')}"
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
    }
    try:
        java = OldJava(version, servers, tmp_path / "java.log", login)
    except NotAvailable as e:
        pytest.skip(f"Kafka's clients of {version} are not here: {e}")
    with closing(java):
        java.produce(servers, topic_name, 0, MESSAGES, "none", idempotent=False)
        assert java.consume(servers, topic_name, 0, 0, len(MESSAGES)) == as_told(MESSAGES, java.magic)


@pytest.fixture(scope="module")
def old_kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldKafka]:
    version, place = "0.10.0.1", f"{zookeeper.connect}/kafka-with-logins"
    try:
        made = OldKafka(version, tmp_path_factory.mktemp("kafka"), place, plain_users={USER: PASSWORD})
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka {version} is not here: {e}")
    try:
        yield made.start()
    finally:
        made.stop()


def test_our_clients_log_in_at_an_old_broker(old_kafka: OldKafka, topic_name: str) -> None:
    given = {
        "bootstrap.servers": old_kafka.client_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    with Producer({**given, "message.format": "v1", "enable.idempotence": False}) as out:
        out.send(topic_name, b"one").result(20)
    assert read(given, topic_name) == [b"one"]
    # Without ApiVersions, by what is known of the release.
    told = {"broker.version.fallback": "0.10.0", "api.version.request": "false"}
    assert read(given | told, topic_name) == [b"one"]
    error = refused(given | {"sasl.password": "guess"})
    assert isinstance(error, AuthenticationFailed)
    assert "as brokers before Kafka 1.0 refuse one; check sasl.username and sasl.password" in str(error)
    other = refused(given | {"sasl.mechanism": "SCRAM-SHA-256"})
    assert isinstance(other, UnsupportedSaslMechanism)
    assert "it supports PLAIN" in str(other)
