"""The properties of a group's consumer: 0.7's names and defaults."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.errors import InvalidConfig

CONF = Path(__file__).resolve().parents[3] / "conf" / "consumer.properties"


def config(**properties: object) -> ConnectorConfig:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return parse(ConnectorConfig, {"zk.connect": "zk:2181", **named}, source="test")


def test_the_file_is_the_defaults_with_a_zookeeper_on_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read = parse(ConnectorConfig, load_properties(CONF), source=str(CONF))
    assert read == ConnectorConfig(zookeeper_connect="localhost:2181")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("groupid", "a/b", "a name without slashes"),
        ("autooffset.reset", "latest", "one of smallest, largest, none"),
        ("consumer.timeout.ms", "-2", "-1 to wait without limit"),
        ("offsets.storage", "kafka", r"zookeeper, or protocol=0\.8"),
        ("dual.commit.enabled", "true", r"false, or protocol=0\.8"),
    ],
)
def test_a_wrong_value_is_reported_with_the_allowed_ones(name: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}={value} is not allowed.*{allowed}"):
        config(**{name.replace(".", "_"): value})


def test_todays_wire_may_keep_offsets_in_kafka() -> None:
    assert config(protocol="0.8", offsets_storage="kafka", dual_commit_enabled="true").dual_commit
    assert config(protocol="0.8", offsets_storage="zookeeper", dual_commit_enabled="true").dual_commit


REQUIRED = {"zk.connect": "zk:2181"}
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "geheim"}


def test_login_and_tls_are_those_of_todays_wire() -> None:
    tls = {"protocol": "0.8", "security.protocol": "SASL_SSL", "ssl.truststore.location": "/ca.pem"}
    connector = parse(ConnectorConfig, REQUIRED | LOGIN | tls, source="s")
    client = connector.for_todays_wire(("a", 1))
    assert (client.sasl_mechanism, client.sasl_password) == ("PLAIN", "geheim")
    assert (client.security_protocol, client.ssl_truststore_location) == ("SASL_SSL", "/ca.pem")
    assert "geheim" not in repr(connector)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "security.protocol=SASL_PLAINTEXT is not allowed with protocol=0.7"),
        ({"protocol": "0.8", "sasl.mechanism": None}, "SASL_PLAINTEXT needs sasl.mechanism"),
        ({"protocol": "0.8", "security.protocol": None}, "security.protocol is missing"),
    ],
)
def test_a_login_that_cannot_be_is_an_error(changes: dict[str, str | None], words: str) -> None:
    given = {k: v for k, v in (REQUIRED | LOGIN | changes).items() if v is not None}
    with pytest.raises(InvalidConfig, match=words):
        parse(ConnectorConfig, given, source="s")
