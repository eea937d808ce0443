"""Properties of one listener: from all, from its own, from one mechanism's; and no secret in a message."""

from __future__ import annotations

import logging

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.errors import InvalidConfig

TEXTS = {
    "listeners": "CLIENT://:9093,PLAINTEXT://:9092",
    "listener.security.protocol.map": "CLIENT:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN",
    "connections.max.reauth.ms": "1000",
    "max.connections": "7",
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.client.ssl.keystore.password": "hush-hush",
    "listener.name.client.max.connections": "3",
    "listener.name.client.plain.sasl.jaas.config": 'x required user_a="hush-hush";',
    "listener.name.client.scram-sha-256.connections.max.reauth.ms": "2000",
}


def test_the_closest_property_counts() -> None:
    config = BrokerConfig.load(None, TEXTS)
    of = config.listener_properties.of
    client, plaintext = of("CLIENT"), of("PLAINTEXT")
    assert client.sasl_enabled_mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert plaintext.sasl_enabled_mechanisms == ("PLAIN",)
    assert (config.max_connections, client.max_connections, plaintext.max_connections) == (7, 3, None)
    assert client.sasl_jaas_config is None
    assert of("CLIENT", "PLAIN").sasl_jaas_config == 'x required user_a="hush-hush";'
    assert [of("CLIENT", name).connections_max_reauth_ms for name in ("PLAIN", "SCRAM-SHA-256")] == [
        1000,
        2000,
    ]


def test_no_secret_is_in_what_is_printed() -> None:
    config = BrokerConfig.load(None, TEXTS)
    assert "hush" not in f"{config!r} {config.listener_properties.of('CLIENT', 'PLAIN')!r}"


def test_unknown_names_are_said_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        BrokerConfig.load(
            None,
            {
                **TEXTS,
                "listener.name.client.ssl.keystore.locatio": "x",
                "listener.name.clinet.ssl.keystore.location": "x",
            },
        )
    assert "did you mean listener.name.client.ssl.keystore.location?" in caplog.text
    assert "listener.name.clinet.ssl.keystore.location is ignored" in caplog.text
    assert caplog.text.count("is ignored") == 2


def test_a_value_is_refused_with_the_name_it_has() -> None:
    config = BrokerConfig.load(None, {"listener.name.plaintext.ssl.client.auth": "maybe"})
    with pytest.raises(InvalidConfig, match=r"listener\.name\.plaintext\.\*: ssl\.client\.auth=maybe"):
        config.listener_properties.of("PLAINTEXT")
