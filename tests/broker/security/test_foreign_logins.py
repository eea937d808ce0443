"""Foreign clients at our secured listeners: each mechanism, certificates, wrong passwords."""

from __future__ import annotations

import asyncio
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from pyspark_kafkalog.security.scram import ScramCredential
from tests.support.network.certificates import Authority
from tests.support.network.tokens import Signer
from tests.support.until import until

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PROTOCOLS = ["SASL_PLAINTEXT", "SASL_SSL"]
SECRET = "alice's secret"
USERS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{SECRET}";'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("certificates"))
    made.issue("server", "127.0.0.1", "localhost")
    made.issue("client", "a.example.org", common_name="a")
    return made


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module")
def secured(
    authority: Authority, signer: Signer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    data = tmp_path_factory.mktemp("data")
    changes = [
        CredentialChange(
            "alice", name, ScramCredential.of_password(name, SECRET, salt=b"0123456789", iterations=4096)
        )
        for name in MECHANISMS[1:]
    ]
    FileCredentials(SecurityFile([data], FileSystem())).change(changes)
    properties = {
        "listeners": ",".join(
            f"{name}://127.0.0.1:0" for name in ("SASL_SSL", "SASL_PLAINTEXT", "SSL", "MUTUAL")
        ),
        "listener.security.protocol.map": "MUTUAL:SSL",
        "ssl.keystore.location": authority.directory / "server.pem",
        "ssl.truststore.location": authority.file,
        "sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
        "sasl.oauthbearer.jwks.endpoint.url": signer.list_keys(data / "keys.json"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        # For MUTUAL: clients that log in are not asked by it.
        "ssl.client.auth": "required",
        "listener.name.ssl.ssl.client.auth": "none",
    }
    with start_broker(properties, data_dir=data) as broker:
        yield broker


def confluent(broker: EmbeddedBroker, authority: Authority, listener: str, **other: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port_of(listener)}",
        "security.protocol": "SSL" if listener == "MUTUAL" else listener,
        "ssl.ca.location": str(authority.file),
        **other,
    }


def login(mechanism: str, password: str = SECRET) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}


def round_trip(settings: dict[str, Any]) -> None:
    """One record there and back through a new topic."""
    topic = f"t-{uuid.uuid4().hex}"
    producer = Producer(settings)
    told: list[Any] = []
    producer.produce(topic, b"v" * 100_000, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    assert told == [None]
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"v" * 100_000)
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", PROTOCOLS)
def test_confluent_kafka(
    secured: EmbeddedBroker, authority: Authority, listener: str, mechanism: str
) -> None:
    round_trip(confluent(secured, authority, listener, **login(mechanism)))


def test_confluent_kafka_with_tokens(secured: EmbeddedBroker, authority: Authority, signer: Signer) -> None:
    def token(_: str) -> tuple[str, float]:
        return signer.token(seconds=300), time.time() + 300

    round_trip(
        confluent(secured, authority, "SASL_SSL", **{"sasl.mechanism": "OAUTHBEARER"}) | {"oauth_cb": token}
    )


def test_kafka_python_with_tokens(secured: EmbeddedBroker, authority: Authority, signer: Signer) -> None:
    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return signer.token("ec", seconds=300)

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{secured.port_of('SASL_SSL')}",
        security_protocol="SASL_SSL",
        ssl_cafile=str(authority.file),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert isinstance(consumer.topics(), set)
    consumer.close()


@pytest.mark.parametrize("listener", ["SSL", "MUTUAL"])
def test_confluent_kafka_with_certificates(
    secured: EmbeddedBroker, authority: Authority, listener: str
) -> None:
    own = str(authority.directory / "client.pem")
    certificate = {"ssl.certificate.location": own, "ssl.key.location": own} if listener == "MUTUAL" else {}
    round_trip(confluent(secured, authority, listener, **certificate))


@pytest.mark.parametrize(
    ("listener", "other", "words"),
    [
        ("SASL_SSL", login("PLAIN", "wrong"), "Invalid username or password"),
        (
            "SASL_SSL",
            login("SCRAM-SHA-256", "wrong"),
            "invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
        ("SASL_SSL", {"sasl.mechanism": "OAUTHBEARER"}, "invalid_token"),
        ("MUTUAL", {}, "certificate required"),
    ],
)
def test_a_refused_login_gets_the_reason(
    secured: EmbeddedBroker, authority: Authority, listener: str, other: dict[str, str], words: str
) -> None:
    if other.get("sasl.mechanism") == "OAUTHBEARER":
        other = {
            "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": "principal=alice",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
        }  # fmt: skip
    said: list[str] = []
    client = AdminClient(
        {
            **confluent(secured, authority, listener, **other),
            "error_cb": lambda error: said.append(str(error)),
        }
    )

    def told() -> bool:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        client.poll(0)
        return any(words in each for each in said)

    until(told)


@pytest.mark.long("a broker for each kind of login")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # sockets that kafka-python leaves open
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: EmbeddedBroker, authority: Authority, mechanism: str) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    settings: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{secured.port_of('SASL_SSL')}",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.file),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": SECRET,
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, b"v" * 100_000).get(90)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=90_000, **settings
    )
    assert next(consumer).value == b"v" * 100_000
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: EmbeddedBroker, authority: Authority, mechanism: str) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    settings: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{secured.port_of('SASL_SSL')}",
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(authority.file)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": SECRET,
    }

    async def there_and_back() -> bytes | None:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"v" * 100_000)
        consumer = aiokafka.AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        async with consumer:
            value: bytes | None = (await asyncio.wait_for(consumer.getone(), 90)).value
            return value

    assert asyncio.run(there_and_back()) == b"v" * 100_000


def test_no_password_is_in_the_brokers_log(secured: EmbeddedBroker) -> None:
    text = secured.log_file.read_text()
    assert SECRET not in text
    assert "wrong" not in text


@pytest.mark.long("a broker for each kind of login")
def test_replaced_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    old, new = Authority.made(tmp_path / "old"), Authority.made(tmp_path / "new")
    path = old.issue("server", "127.0.0.1")
    with start_broker({"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}) as broker:
        address = ("127.0.0.1", broker.port)
        assert ssl.get_server_certificate(address, ca_certs=str(old.file))
        path.write_bytes(b"half a file")
        path.write_bytes(new.issue("server", "127.0.0.1").read_bytes())

        def trusted() -> bool:
            try:
                return bool(ssl.get_server_certificate(address, ca_certs=str(new.file)))
            except ssl.SSLError:
                return False

        until(trusted)
