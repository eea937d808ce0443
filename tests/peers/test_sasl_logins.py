"""Our clients' logins at Apache Kafka 4.1: every mechanism, refusals, and sessions that end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    IllegalSaslState,
    UnsupportedSaslMechanism,
)
from tests.support.client.login_rounds import keep_connections, refused, round_trip
from tests.support.client.token_endpoint import TokenEndpoint
from tests.support.foreign.apache_kafka import fetch
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.kerberos import REALM, Realm
from tests.support.foreign.secure_kafka import OAUTH, PASSWORD, PLAIN, SCRAM, USER, SaslKafka
from tests.support.spark.spark_environments import SparkProcess

SESSION_MS = 3_600_000
SCRAM_USER = f'{SCRAM} required username="{USER}" password="{PASSWORD}";'
PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "PLAIN": {"sasl.jaas.config": f'{PLAIN} required username="{USER}" password="{PASSWORD}";'},
    "SCRAM-SHA-256": {"sasl.jaas.config": SCRAM_USER},
    "SCRAM-SHA-512": {"sasl.username": USER, "sasl.password": PASSWORD},
    "OAUTHBEARER": {"sasl.jaas.config": f'{OAUTH} required clientId="me" clientSecret="{PASSWORD}";'},
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslKafka]:
    yield from running(tmp_path_factory.mktemp("sasl-kafka"), session_ms=SESSION_MS)


def running(directory: Path, **options: object) -> Iterator[SaslKafka]:
    try:
        jars = fetch("4.1.1")
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")
    kafka = SaslKafka(jars, directory, **options)  # type: ignore[arg-type]
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as made:
        yield made


def properties(kafka: SaslKafka, mechanism: str, endpoint: TokenEndpoint | None = None) -> dict[str, str]:
    given = {
        "bootstrap.servers": kafka.client_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **PROPERTIES.get(mechanism, {}),
    }
    if endpoint is not None:
        given["sasl.oauthbearer.token.endpoint.url"] = endpoint.url
    return given


@pytest.mark.parametrize("mechanism", PROPERTIES)
def test_every_client_logs_in(
    kafka: SaslKafka, mechanism: str, endpoint: TokenEndpoint, topic_name: str
) -> None:
    round_trip(properties(kafka, mechanism, endpoint), topic_name)
    assert len(endpoint.asked) == (1 if mechanism == "OAUTHBEARER" else 0)


@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "nobody"), ("SCRAM-SHA-256", USER)])
def test_a_wrong_password_is_final(kafka: SaslKafka, mechanism: str, user: str) -> None:
    given = properties(kafka, mechanism)
    given["sasl.jaas.config"] = f'{SCRAM} required username="{user}" password="guess";'
    error = refused(given)
    assert isinstance(error, AuthenticationFailed)
    assert "Authentication failed" in str(error)
    assert "check sasl.jaas.config" in str(error)


def test_a_token_that_is_over_is_final(kafka: SaslKafka) -> None:
    with TokenEndpoint(token_seconds=-60) as endpoint:
        error = refused(properties(kafka, "OAUTHBEARER", endpoint))
    assert isinstance(error, AuthenticationFailed)
    assert "invalid_token" in str(error)


def test_a_listener_without_logins_says_so(kafka: SaslKafka) -> None:
    error = refused({**properties(kafka, "PLAIN"), "bootstrap.servers": kafka.bootstrap_servers})
    assert isinstance(error, IllegalSaslState)
    assert "this listener has no SASL" in str(error)


def test_no_login_where_one_is_wanted_is_explained(kafka: SaslKafka) -> None:
    config = parse(ConsumerConfig, {"bootstrap.servers": kafka.client_servers}, source="test")
    with closing(Cluster(config)) as cluster, pytest.raises(AuthenticationFailed) as raised:
        cluster.metadata(["t"])
    assert "wants a login: then set security.protocol to SASL_PLAINTEXT or SASL_SSL" in str(raised.value)


def test_no_connection_is_lost_when_sessions_end(
    kafka: SaslKafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        keep_connections(properties(kafka, "SCRAM-SHA-256"), topic_name, patch)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A KDC, if there is one on this machine; and the package gssapi."""
    pytest.importorskip("gssapi", reason="gssapi has no wheel for Linux: pip install '.[kerberos]'")
    try:
        made = Realm(tmp_path_factory.mktemp("realm"))
    except NotAvailable as e:
        pytest.skip(f"Kerberos is not here: {e}")
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def kerberos_kafka(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslKafka]:
    principal = f"kafka/localhost@{REALM}"
    keytab = realm.keytab(principal)
    yield from running(
        tmp_path_factory.mktemp("kerberos-kafka"),
        session_ms=SESSION_MS,
        kerberos={"useKeyTab": "true", "storeKey": "true", "keyTab": str(keytab), "principal": principal},
        java_options=(f"-Djava.security.krb5.conf={realm.configuration}",),
    )


def test_every_client_logs_in_with_kerberos(
    realm: Realm, kerberos_kafka: SaslKafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    keytab = realm.keytab(f"alice@{REALM}")
    given = properties(kerberos_kafka, "GSSAPI") | {
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true keyTab="{keytab}" principal="alice@{REALM}";',
    }
    round_trip(given, topic_name)
    error = refused(given | {"sasl.kerberos.service.name": "other"})
    assert isinstance(error, AuthenticationFailed)
    assert "other/localhost" in str(error)


def test_every_job_of_spark_logs_in_with_kerberos(
    realm: Realm,
    kerberos_kafka: SaslKafka,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    keytab = realm.keytab(f"alice@{REALM}")
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "kafka",
        "kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true keyTab="{keytab}" principal="alice@{REALM}";',
    }
    create_topics(kerberos_kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    # A driver of its own: Spark's workers have the variables with which its Java was started.
    process = SparkProcess(tmp_path / "spark.log")
    try:
        process.call(
            "tests.support.datasource.secured_jobs:run_all",
            servers=kerberos_kafka.client_servers, topic=topic_name, options=options, directory=str(tmp_path),
        )  # fmt: skip
    finally:
        process.close()


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are(
    realm: Realm, kafka: SaslKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    realm.keytab(f"kafka/localhost@{REALM}")
    given = properties(kafka, "GSSAPI") | {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": str(realm.keytab(f"alice@{REALM}")),
        "sasl.kerberos.principal": f"alice@{REALM}",
    }
    error = refused(given)
    assert isinstance(error, UnsupportedSaslMechanism)
    assert "SCRAM-SHA-512" in str(error)
    assert "Set sasl.mechanism" in str(error)
