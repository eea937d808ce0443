"""Our clients at Apache Kafka's TLS listeners: stores that keytool and openssl made, certificates of clients,
and what is said when one side refuses the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import AuthenticationFailed
from tests.support.client.login_rounds import refused, round_trip
from tests.support.foreign.apache_kafka import fetch
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.secure_kafka import PASSWORD, USER, TlsKafka
from tests.support.network.certificates import Authority, client_stores


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=[None, "4.1.1"], ids=["3.9", "4.1"])
def kafka(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsKafka]:
    try:
        jars = fetch(request.param)
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")
    kafka = TlsKafka(jars, tmp_path_factory.mktemp("tls-kafka"), authority)
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture(scope="module")
def stores(authority: Authority) -> dict[str, dict[str, str]]:
    return client_stores(authority)


def trusting(kafka: TlsKafka, listener: str, given: Mapping[str, str]) -> dict[str, str]:
    """A client of that listener, without a certificate unless ``given`` has one."""
    return {"bootstrap.servers": kafka.servers[listener], "security.protocol": "SSL", **given}


def test_every_client_speaks_tls(kafka: TlsKafka, authority: Authority, topic_name: str) -> None:
    round_trip(trusting(kafka, "TLS", {"ssl.ca.location": str(authority.file)}), topic_name)


@pytest.mark.parametrize("kind", ["PEM", "JKS", "PKCS12", "inline"])
def test_a_client_shows_its_certificate(
    kafka: TlsKafka, stores: dict[str, dict[str, str]], kind: str, topic_name: str
) -> None:
    round_trip(trusting(kafka, "MUTUAL", stores[kind]), topic_name)


def test_a_client_logs_in_over_tls(kafka: TlsKafka, authority: Authority, topic_name: str) -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(authority.file),
    }
    round_trip(trusting(kafka, "LOGIN", login), topic_name)


@pytest.mark.parametrize(
    ("listener", "given", "said"),
    [
        ("TLS", {}, "unknown authority"),
        ("TLS", {"bootstrap.servers": "127.0.0.1", "trust": "own"}, "of another host"),
        ("TLS", {"security.protocol": "PLAINTEXT"}, "this port speaks TLS: set security.protocol to SSL"),
        ("MUTUAL", {"trust": "own"}, "wants a certificate of this client: see ssl.keystore.location"),
        ("MUTUAL", {"trust": "own", "keys": "foreign"}, "does not accept this client's certificate"),
    ],
)
def test_a_refusal_is_final_and_names_the_property(
    kafka: TlsKafka, authority: Authority, tmp_path: Path, listener: str, given: dict[str, str], said: str
) -> None:
    properties = trusting(kafka, listener, {k: v for k, v in given.items() if k not in ("trust", "keys")})
    if "bootstrap.servers" in given:
        properties["bootstrap.servers"] = kafka.servers[listener].replace("localhost", "127.0.0.1")
    if "trust" in given:
        properties["ssl.truststore.location"] = str(authority.file)
    if "keys" in given:
        foreign = Authority.made(tmp_path).issue("client", "client.example.org")
        properties["ssl.keystore.location"] = str(foreign)
    error = refused(properties)
    assert isinstance(error, AuthenticationFailed)
    assert said in str(error)
