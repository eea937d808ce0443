"""Spark with logins at Apache Kafka: both connectors with the same options, our sink, stream and load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import NewTopic, create_topics
from tests.support.client.token_endpoint import TokenEndpoint, unsecured_token
from tests.support.datasource.both_connectors import OURS, THEIRS, read
from tests.support.datasource.secured_jobs import run_all, write
from tests.support.foreign.apache_kafka import fetch
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.secure_kafka import OAUTH, PASSWORD, PLAIN, SCRAM, USER, SaslKafka
from tests.support.network.tokens import Signer

JAAS = f'required username="{USER}" password="{PASSWORD}";'
LOGINS: Mapping[str, str] = {
    "PLAIN": f"{PLAIN} {JAAS}",
    "SCRAM-SHA-512": f"{SCRAM} {JAAS}",
}

HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslKafka]:
    made = SaslKafka(kafka_jars, tmp_path_factory.mktemp("kafka-logins"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def filled(spark: Any, kafka: SaslKafka, topic_name: str) -> str:
    """A topic with two partitions and 100 rows, written without a login."""
    create_topics(kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    write(spark, kafka.bootstrap_servers, topic_name, {})
    return topic_name


def login(mechanism: str, jaas: str) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": jaas,
    }


@pytest.mark.parametrize("mechanism", LOGINS)
def test_both_connectors_read_the_same_rows(
    spark: Any, connector: list[Path], kafka: SaslKafka, filled: str, mechanism: str
) -> None:
    if not connector:
        pytest.skip("Spark's Kafka connector is not here")
    options = {"subscribe": filled, **login(mechanism, LOGINS[mechanism])}
    ours, theirs = (read(spark, source, kafka.client_servers, options) for source in (OURS, THEIRS))
    assert ours == theirs
    assert len(ours.rows) == 100


@pytest.mark.parametrize("mechanism", LOGINS)
def test_every_job_logs_in_with_the_same_options(
    spark: Any, kafka: SaslKafka, topic_name: str, tmp_path: Path, mechanism: str
) -> None:
    create_topics(kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    run_all(spark, kafka.client_servers, topic_name, login(mechanism, LOGINS[mechanism]), tmp_path)


def test_every_job_logs_in_with_tokens(spark: Any, kafka: SaslKafka, topic_name: str, tmp_path: Path) -> None:
    create_topics(kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    with TokenEndpoint() as endpoint:
        options = {
            **login("OAUTHBEARER", f'{OAUTH} required clientId="me" clientSecret="{PASSWORD}";'),
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
        }
        run_all(spark, kafka.client_servers, topic_name, options, tmp_path)


def test_a_token_is_fetched_once_for_each_worker(spark: Any, kafka: SaslKafka, filled: str) -> None:
    with TokenEndpoint() as endpoint:
        options = {
            "subscribe": filled,
            **login("OAUTHBEARER", f'{OAUTH} required clientId="me" clientSecret="{PASSWORD}";'),
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
        }
        for _ in range(3):
            assert len(read(spark, OURS, kafka.client_servers, options).rows) == 100
        # The planner's process and the workers', which serve all three reads.
        assert 1 <= len(endpoint.asked) <= 6


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module", params=["Apache Kafka", "ours"])
def token_servers(
    request: pytest.FixtureRequest, signer: Signer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Where a broker listens without a login, and for tokens with a signature."""
    place = tmp_path_factory.mktemp("tokens")
    keys = signer.list_keys(place / "keys.json")
    if request.param == "ours":
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys,
        }
        with start_broker(properties) as running:
            yield running.bootstrap_servers, f"127.0.0.1:{running.port_of('SASL_PLAINTEXT')}"
        return
    try:
        made = SaslKafka(fetch(), place, keys=keys)
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")
    try:
        made.start()
        yield made.bootstrap_servers, made.client_servers
    finally:
        made.stop()


def test_both_connectors_read_the_same_rows_with_tokens(
    spark: Any, connector: list[Path], token_servers: tuple[str, str], signer: Signer, topic_name: str
) -> None:
    if not connector:
        pytest.skip("Spark's Kafka connector is not here")
    inside, outside = token_servers
    create_topics(inside, [NewTopic(topic_name, 2)])
    write(spark, inside, topic_name, {})
    with TokenEndpoint() as endpoint:
        for _ in range(20):
            now = int(time.time())
            token = signer.token(seconds=600, iat=now, scope="kafka")
            endpoint.answers.append((200, {"access_token": token, "token_type": "Bearer", "expires_in": 600}))
        # Kafka's client asks no endpoint that its Java was not told of.
        spark._jvm.System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", endpoint.url)
        options = {
            "subscribe": topic_name,
            **login(
                "OAUTHBEARER", f'{OAUTH} required clientId="me" clientSecret="{PASSWORD}" scope="kafka";'
            ),
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "kafka.sasl.login.callback.handler.class": HANDLER,
        }
        ours, theirs = (read(spark, source, outside, options) for source in (OURS, THEIRS))
        asked = {(each.authorization, each.body) for each in endpoint.asked}
    assert ours == theirs
    assert len(ours.rows) == 100
    # Both ask in the same words.
    assert len(asked) == 1


def test_a_token_file_shipped_with_the_job_is_found_by_its_name(
    spark: Any, kafka: SaslKafka, filled: str, tmp_path: Path
) -> None:
    token = tmp_path / f"{filled}.token"
    token.write_text(unsecured_token(USER, 600))
    spark.sparkContext.addFile(str(token))
    options = {
        "subscribe": filled,
        **login("OAUTHBEARER", f"{OAUTH} required;"),
        "kafka.sasl.oauthbearer.token.endpoint.url": f"file:{token.name}",
    }
    assert len(read(spark, OURS, kafka.client_servers, options).rows) == 100


def test_a_wrong_password_fails_soon_and_names_the_option(spark: Any, kafka: SaslKafka, filled: str) -> None:
    options = {"subscribe": filled, **login("PLAIN", LOGINS["PLAIN"].replace(PASSWORD, "gue55ed"))}
    began = time.monotonic()
    with pytest.raises(Exception, match="check kafka.sasl.jaas.config") as raised:  # noqa: RUF043
        read(spark, OURS, kafka.client_servers, options)
    assert time.monotonic() - began < 15
    assert "gue55ed" not in str(raised.value)
