"""Our clients at Apache Kafka's TLS listeners: stores that keytool and openssl made, certificates of clients,
and what is said when one side refuses the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import AuthenticationFailed
from tests.support.client.login_rounds import refused, round_trip
from tests.support.foreign.secure_kafka import PASSWORD, USER, TlsKafka
from tests.support.network.certificates import Authority, client_stores


@pytest.fixture(scope="module")
def stores(authority: Authority) -> dict[str, dict[str, str]]:
    return client_stores(authority)


def trusting(tls_kafka: TlsKafka, listener: str, given: Mapping[str, str]) -> dict[str, str]:
    """A client of that listener, without a certificate unless ``given`` has one."""
    return {"bootstrap.servers": tls_kafka.servers[listener], "security.protocol": "SSL", **given}


def test_every_client_speaks_tls(tls_kafka: TlsKafka, authority: Authority, topic_name: str) -> None:
    round_trip(trusting(tls_kafka, "TLS", {"ssl.ca.location": str(authority.file)}), topic_name)


@pytest.mark.parametrize("kind", ["PEM", "JKS", "PKCS12", "inline"])
def test_a_client_shows_its_certificate(
    tls_kafka: TlsKafka, stores: dict[str, dict[str, str]], kind: str, topic_name: str
) -> None:
    round_trip(trusting(tls_kafka, "MUTUAL", stores[kind]), topic_name)


def test_a_client_logs_in_over_tls(tls_kafka: TlsKafka, authority: Authority, topic_name: str) -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(authority.file),
    }
    round_trip(trusting(tls_kafka, "LOGIN", login), topic_name)


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
    tls_kafka: TlsKafka, authority: Authority, tmp_path: Path, listener: str, given: dict[str, str], said: str
) -> None:
    properties = trusting(tls_kafka, listener, {k: v for k, v in given.items() if k not in ("trust", "keys")})
    if "bootstrap.servers" in given:
        properties["bootstrap.servers"] = tls_kafka.servers[listener].replace("localhost", "127.0.0.1")
    if "trust" in given:
        properties["ssl.truststore.location"] = str(authority.file)
    if "keys" in given:
        foreign = Authority.made(tmp_path).issue("client", "client.example.org")
        properties["ssl.keystore.location"] = str(foreign)
    error = refused(properties)
    assert isinstance(error, AuthenticationFailed)
    assert said in str(error)
