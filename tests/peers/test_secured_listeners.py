"""Java's clients and Kafka's own commands log in at our listeners: each mechanism with TLS, certificates, the
users that kafka-configs makes, and what a wrong password is told.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.foreign.apache_kafka import java, run_tool
from tests.support.network.certificates import Authority

_PRODUCER = "kafka.tools.ConsoleProducer"
_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_TOPICS = "org.apache.kafka.tools.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_MODULES = "org.apache.kafka.common.security."
_PLAIN, _SCRAM = f"{_MODULES}plain.PlainLoginModule", f"{_MODULES}scram.ScramLoginModule"
_SECRET = "alice's secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("certificates"))
    made.issue("server", "127.0.0.1", "localhost")
    made.issue("client", "a.example.org", common_name="a")
    return made


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedBroker]:
    properties = {
        "listeners": "CLIENT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENT:SASL_SSL,MUTUAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.directory / "server.pem",
        "ssl.truststore.location": authority.file,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": f'{_PLAIN} required user_alice="{_SECRET}";',
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_PLAIN} required user_alice="{_SECRET}";',
        "listener.name.client.plain.connections.max.reauth.ms": 3000,
        "listener.name.mutual.ssl.client.auth": "required",
    }
    with start_broker(properties) as broker:
        yield broker


@pytest.fixture(scope="module")
def properties(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a client's properties for each way to come in, by its name."""
    directory = tmp_path_factory.mktemp("clients")
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={authority.file}\n"
    for name, password in (("PLAIN", _SECRET), ("SCRAM-SHA-256", _SECRET), ("SCRAM-SHA-512", _SECRET),
                           ("WRONG", "wrong")):  # fmt: skip
        mechanism = "PLAIN" if name == "WRONG" else name
        module = _PLAIN if mechanism == "PLAIN" else _SCRAM
        (directory / name).write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="alice" password="{password}";\n{trust}'
        )
    (directory / "MUTUAL").write_text(
        f"security.protocol=SSL\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location={authority.directory / 'client.pem'}\n{trust}"
    )
    return directory


def there_and_back(jars: Path, servers: str, config: Path, topic: str) -> None:
    """Three lines from the console to the console."""
    run_tool(
        jars, _TOPICS, "--bootstrap-server", servers, "--command-config", config, "--create", "--topic", topic
    )
    command = java(
        jars, _PRODUCER, "--bootstrap-server", servers, "--producer.config", config, "--topic", topic
    )
    lines = "one\ntwo\nthree\n"
    done = subprocess.run(command, input=lines, text=True, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    told = run_tool(
        jars, _CONSUMER, "--bootstrap-server", servers, "--consumer.config", config, "--topic", topic,
        "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000",
    )  # fmt: skip
    assert [line for line in told.splitlines() if line in ("one", "two", "three")] == ["one", "two", "three"]


def test_java_logs_in_with_plain_and_makes_the_users_of_scram(
    secured: EmbeddedBroker, properties: Path, kafka_jars: Path
) -> None:
    servers = f"localhost:{secured.port_of('CLIENT')}"
    there_and_back(kafka_jars, servers, properties / "PLAIN", "by-plain")
    configs = (
        "--bootstrap-server", servers, "--command-config", properties / "PLAIN", "--entity-type", "users",
        "--entity-name", "alice",
    )  # fmt: skip
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = f"{mechanism}=[iterations=8192,password={_SECRET}]"
        told = run_tool(kafka_jars, _CONFIGS, *configs, "--alter", "--add-config", added)
        assert "Completed updating config for user alice" in told
    there_and_back(kafka_jars, servers, properties / "SCRAM-SHA-512", "by-scram")
    told = run_tool(kafka_jars, _CONFIGS, *configs, "--describe")
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=8192" in told
    run_tool(kafka_jars, _CONFIGS, *configs, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in run_tool(kafka_jars, _CONFIGS, *configs, "--describe")


def test_java_shows_a_certificate(secured: EmbeddedBroker, properties: Path, kafka_jars: Path) -> None:
    servers = f"localhost:{secured.port_of('MUTUAL')}"
    there_and_back(kafka_jars, servers, properties / "MUTUAL", "by-certificate")


def test_java_keeps_its_connection_over_many_lifetimes(
    secured: EmbeddedBroker, properties: Path, kafka_jars: Path
) -> None:
    # Its login lasts 3 s; the consumer waits for 8 s, then gives up because nothing comes, and not before.
    servers = f"localhost:{secured.port_of('CLIENT')}"
    run_tool(kafka_jars, _TOPICS, "--bootstrap-server", servers, "--command-config", properties / "PLAIN",
             "--create", "--topic", "empty")  # fmt: skip
    command = java(
        kafka_jars, _CONSUMER, "--bootstrap-server", servers, "--consumer.config", properties / "PLAIN",
        "--topic", "empty", "--timeout-ms", "8000",
    )  # fmt: skip
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert "TimeoutException" in done.stderr + done.stdout
    assert "uthentication" not in done.stderr + done.stdout


def test_a_wrong_password_is_reported_at_once(
    secured: EmbeddedBroker, properties: Path, kafka_jars: Path
) -> None:
    servers = f"localhost:{secured.port_of('CLIENT')}"
    command = java(
        kafka_jars, _CONSUMER, "--bootstrap-server", servers, "--consumer.config", properties / "WRONG",
        "--topic", "by-plain", "--timeout-ms", "20000",
    )  # fmt: skip
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert "Authentication failed: Invalid username or password" in done.stderr + done.stdout
