"""What a listener's properties become, and what is refused before it listens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.listener_config import ListenerProperties
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.security.file_stores import FileCredentials, SecurityFile
from kafkalog_broker.server.listeners import connection_limits, limits_by_address, mechanisms_of
from pyspark_kafkalog.errors import InvalidConfig

HANDLER = "sasl.server.callback.handler.class"
TEXTS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.client.plain.sasl.jaas.config": 'PlainLoginModule required user_alice="a";',
}


def offered(data: Path, **texts: str) -> list[str]:
    users = FileCredentials(SecurityFile([data], FileSystem()))
    return list(mechanisms_of("CLIENT", ListenerProperties(TEXTS | texts), users, []))


TWO = {"listeners": "CLIENT://:0,PLAINTEXT://:0", "listener.security.protocol.map": "CLIENT:PLAINTEXT"}


def test_listeners_share_the_descriptors_that_logs_and_the_reserve_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig.load(None, TWO)
    assert connection_limits(config, 64 + 401) == {"CLIENT": 200, "PLAINTEXT": 200}
    with pytest.raises(InvalidConfig, match=r"log\.open\.files\.max leaves 65, and 64 are a reserve"):
        connection_limits(config, 65)
    assert not caplog.records


def test_a_configured_number_of_connections_counts_even_if_descriptors_are_too_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig.load(
        None, TWO | {"max.connections": "7", "listener.name.client.max.connections": "3"}
    )
    with caplog.at_level(logging.WARNING):
        assert connection_limits(config, 64 + 10) == {"CLIENT": 3, "PLAINTEXT": 7}
        assert not caplog.records
        assert connection_limits(config, 64 + 9) == {"CLIENT": 3, "PLAINTEXT": 7}
    assert "10 connections are allowed, but this process has descriptors for 9" in caplog.text


def test_a_limit_may_name_a_host_and_holds_for_all_its_addresses() -> None:
    found = limits_by_address({"localhost": 7, "10.0.0.7": 1, "[::1]": 2})
    assert (found["127.0.0.1"], found["10.0.0.7"], found["::1"]) == (7, 1, 2)
    with pytest.raises(InvalidConfig, match=r"max\.connections\.per\.ip\.overrides=no-such\.invalid:3: "):
        limits_by_address({"no-such.invalid": 3})


def test_a_class_that_decides_who_logs_in_is_not_ignored(tmp_path: Path) -> None:
    prefix = "listener.name.client."
    with pytest.raises(InvalidConfig, match=rf"plain\.{HANDLER}=com\.example\.Ldap is not supported"):
        offered(tmp_path, **{f"{prefix}plain.{HANDLER}": "com.example.Ldap"})
    with pytest.raises(InvalidConfig, match=r"give the users as SCRAM-SHA-256 has them"):
        offered(tmp_path, **{f"{prefix}scram-sha-256.{HANDLER}": "x:y"})
    kafkas = "org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler"
    given = {f"{prefix}plain.{HANDLER}": kafkas, HANDLER: "of:oauthbearer"}
    assert offered(tmp_path, **given) == ["PLAIN", "SCRAM-SHA-256"]
