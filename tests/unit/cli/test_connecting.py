from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_kafkalog.cli import arguments, main, topics
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


FILE = """\
bootstrap.servers=localhost:9, other:9
security.protocol=PLAINTEXT
client.dns.lookup=use_all_dns_ips
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
interceptor.classes=a.b.Interceptor
acks=all
group.id=g
sasl.login.refresh.window.factor=0.8
reqest.timeout.ms=1
"""


@pytest.mark.parametrize(
    ("arguments", "variable", "server"),
    [
        ((), None, "localhost:9, other:9"),
        (("-b", "127.0.0.1:9092"), None, "127.0.0.1:9092"),
        ((), "variable:9", "variable:9"),
    ],
)
def test_the_file_names_the_brokers_unless_an_option_or_a_variable_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    variable: str | None,
    server: str,
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(FILE)
    asked = []
    monkeypatch.setattr(topics, "connected", lambda server: asked.append(server) or 1 / 0)
    monkeypatch.setattr("sys.argv", ["kafkalog", "topics", "list", "--command-config", str(file), *arguments])
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVER", raising=False)
    if variable is not None:
        monkeypatch.setenv("KAFKALOG_BOOTSTRAP_SERVER", variable)
    with pytest.raises(ZeroDivisionError):
        main()
    assert asked == [server]


def test_an_address_of_the_file_is_blamed_on_it_and_kafkas_own_names_are_no_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(FILE)
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVER", raising=False)
    token = arguments._properties_file.set(file)
    try:
        config = client_config(ClientConfig, "localhost:9, other:9", {})
    finally:
        arguments._properties_file.reset(token)
    assert config.servers_option == f"bootstrap.servers in {file}"
    assert config.option_name("security.protocol") == "security.protocol"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == [
        f"{file}: interceptor.classes has no meaning here and is ignored",
        f"{file}: unknown property reqest.timeout.ms is ignored; did you mean request.timeout.ms?",
    ]
