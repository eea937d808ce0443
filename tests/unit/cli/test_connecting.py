from __future__ import annotations

import pytest

from pyspark_kafkalog.cli.arguments import client_config
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import InvalidConfig


def test_a_wrong_address_is_blamed_on_the_option_that_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVER", raising=False)
    config = client_config(ClientConfig, "a:1", {"client.id": "x"}, "consume")
    assert (config.servers_option, config.bootstrap_servers) == ("--bootstrap-server", "a:1")
    with pytest.raises(InvalidConfig, match=r"^--bootstrap-server: 'localhost' is not host:port; .*:9092$"):
        client_config(ClientConfig, "localhost", {})
    monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVER", "localhost")
    with pytest.raises(InvalidConfig, match=r"^KAFKALOG_BOOTSTRAP_SERVER: 'localhost' is not host:port"):
        client_config(ClientConfig, "localhost", {})


def test_the_release_of_old_brokers_comes_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALOG_BROKER_VERSION", "0.9.0")
    assert client_config(ClientConfig, "a:1", {}).broker_version_fallback == "0.9.0"
    monkeypatch.setenv("KAFKALOG_BROKER_VERSION", "12")
    with pytest.raises(InvalidConfig, match=r"^KAFKALOG_BROKER_VERSION: broker.version.fallback=12 is not"):
        client_config(ClientConfig, "a:1", {})
