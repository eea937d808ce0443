"""Our clients at our secured listener: each mechanism, refusals, and sessions that end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import AuthenticationFailed, IllegalSaslState, UnsupportedSaslMechanism
from pyspark_kafkalog.security.scram import ScramCredential
from pyspark_kafkalog.types import NewRecord
from tests.support.client.login_rounds import keep_connections, refused, round_trip
from tests.support.client.old_broker import broker_of
from tests.support.command_line import kafkalog
from tests.support.network.certificates import Authority

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SECRET = "alice's secret"
USERS = f'PlainLoginModule required user_alice="{SECRET}";'
SESSION_MS = 3_600_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def properties(authority: Authority) -> dict[str, object]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("server", "127.0.0.1"),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
    }


def add_alice(data: Path) -> None:
    FileCredentials(SecurityFile([data], FileSystem())).change(
        CredentialChange(
            "alice", name, ScramCredential.of_password(name, SECRET, salt=b"0123456789", iterations=4096)
        )
        for name in MECHANISMS[1:]
    )


@pytest.fixture(scope="module")
def broker(
    properties: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    data = tmp_path_factory.mktemp("data")
    add_alice(data)
    given = properties | {"connections.max.reauth.ms": str(SESSION_MS)}
    with start_broker(given, data_dir=data) as running:
        yield running


def login(broker: EmbeddedBroker, mechanism: str, password: str = SECRET) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_logs_in(broker: EmbeddedBroker, mechanism: str) -> None:
    round_trip(login(broker, mechanism), f"t-{uuid.uuid4().hex}")


def test_every_client_logs_in_over_tls_with_a_password_that_is_kept_in_a_file(
    broker: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "secrets.properties").write_text(f"alice={SECRET}\n")
    given = login(broker, "SCRAM-SHA-512", f"${{file:{tmp_path}/secrets.properties:alice}}") | {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_SSL')}",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority.file),
    }
    round_trip(given, f"t-{uuid.uuid4().hex}")
    assert isinstance(refused(given | {"sasl.password": "guess"}), AuthenticationFailed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_final(broker: EmbeddedBroker, mechanism: str) -> None:
    error = refused(login(broker, mechanism, "guess"))
    assert isinstance(error, AuthenticationFailed)
    assert "check sasl.username and sasl.password" in str(error)


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are(
    broker: EmbeddedBroker, tmp_path
) -> None:
    (tmp_path / "token").write_text("abc")
    url = {"sasl.oauthbearer.token.endpoint.url": f"file:{tmp_path}/token"}
    error = refused(login(broker, "OAUTHBEARER") | url)
    assert isinstance(error, UnsupportedSaslMechanism)
    assert "it supports PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. Set sasl.mechanism" in str(error)


def test_a_listener_without_logins_says_so(broker: EmbeddedBroker) -> None:
    given = login(broker, "PLAIN")
    error = refused(given | {"bootstrap.servers": f"127.0.0.1:{broker.port_of('PLAINTEXT')}"})
    assert isinstance(error, IllegalSaslState)


def test_no_connection_is_lost_when_sessions_end(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        keep_connections(login(broker, "SCRAM-SHA-256"), f"t-{uuid.uuid4().hex}", patch)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_of_the_first_generations_api_log_in(broker: EmbeddedBroker, mechanism: str) -> None:
    given = {**login(broker, mechanism), "protocol": "0.8"}
    del given["bootstrap.servers"]
    port, topic = broker.port_of("SASL_PLAINTEXT"), f"t-{uuid.uuid4().hex}"
    with SyncProducer("127.0.0.1", port, given) as producer:
        producer.send(topic, [NewRecord(b"one")], 0)
    with SimpleConsumer("127.0.0.1", port, given) as consumer:
        assert [record.value for record in consumer.fetch(topic, 0, 0).records()] == [b"one"]


def test_commands_log_in_with_the_properties_of_a_file(broker: EmbeddedBroker, tmp_path) -> None:
    given = login(broker, "SCRAM-SHA-512")
    server = given.pop("bootstrap.servers")
    file, topic = tmp_path / "client.properties", f"t-{uuid.uuid4().hex}"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    options = ("--command-config", str(file))
    for arguments, said in ((("topics", "create", topic), ""), (("produce", topic), "one\n")):
        done = kafkalog(*arguments, *options, server=server, said=said)
        assert done.returncode == 0, done.stderr
    assert kafkalog("consume", topic, *options, server=server).stdout == "one\n"
    file.write_text(file.read_text().replace("alice's", "bob's"))
    done = kafkalog("topics", "list", *options, server=server)
    assert done.returncode == 1
    assert "check sasl.username and sasl.password" in done.stderr
    assert "bob's" not in done.stderr


def test_brokers_before_1_0_take_the_mechanism_s_messages_bare(
    properties: dict[str, object], tmp_path: Path
) -> None:
    add_alice(tmp_path)
    with broker_of("0.10.2", properties, tmp_path) as old:
        for mechanism in MECHANISMS:
            with closing(Cluster(parse(ConsumerConfig, login(old, mechanism), source="test"))) as cluster:
                assert len(cluster.metadata([]).brokers) == 1
            error = refused(login(old, mechanism, "guess"))
            assert isinstance(error, AuthenticationFailed)
            assert "brokers before Kafka 1.0 refuse one; check sasl.username and sasl" in str(error)
