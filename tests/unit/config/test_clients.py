from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.config.classic_config import Client07Config
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import Config, parse
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import parse_address


def test_an_address_is_host_and_port_and_bootstrap_servers_are_several() -> None:
    assert parse_address("localhost:9092") == ("localhost", 9092)
    assert parse_address(" 10.0.0.1:1 ") == ("10.0.0.1", 1)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    assert ClientConfig("one:1, two:2,").bootstrap_addresses() == (("one", 1), ("two", 2))


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "localhost:", ":9092", "a:0", "a:65536", "a:-1", "a:９", "::1:9092", "a:1:2", "[]:1"],
)
def test_anything_else_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|IPv6"):
        parse_address(text)
    with pytest.raises(InvalidConfig, match=r"bootstrap\.servers="):
        ClientConfig(text)


def test_librdkafkas_names_of_tls_are_aliases() -> None:
    given = {"ssl.ca.location": "ca", "ssl.ca.pem": "c", "ssl.key.pem": "k", "ssl.certificate.pem": "chain"}
    found = parse(
        ClientConfig, {"bootstrap.servers": "a:1", "security.protocol": "SSL", **given}, source="options"
    )
    assert (found.ssl_truststore_location, found.ssl_truststore_certificates) == ("ca", "c")
    assert (found.ssl_keystore_key, found.ssl_keystore_certificate_chain) == ("k", "chain")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.endpoint.identification.algorithm", "ldaps"),
        ("ssl.enabled.protocols", "TLSv1.2,SSLv3"),
        ("ssl.protocol", "TLSv1.1"),
        ("enable.ssl.certificate.verification", "no"),
    ],
)
def test_a_property_of_tls_out_of_range_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^options: {name}={value} is not allowed; allowed: "):
        parse(
            ClientConfig,
            {"bootstrap.servers": "a:1", "security.protocol": "SSL", name: value},
            source="options",
        )


@pytest.mark.parametrize("other", [{"enable_idempotence": False}, {"acks": "1"}, {"message_format": "v1"}])
def test_transactions_need_idempotence(other: dict[str, Any]) -> None:
    assert ProducerConfig("a:1", transactional_id="loads").enable_idempotence
    with pytest.raises(
        InvalidConfig, match=r"^transactional\.id=loads is not allowed; .*enable\.idempotence"
    ):
        ProducerConfig("a:1", transactional_id="loads", **other)
    with pytest.raises(InvalidConfig, match="not empty"):
        ProducerConfig("a:1", transactional_id="")
    with pytest.raises(InvalidConfig, match=r"^retries=0 is not allowed; .*transactional\.id"):
        ProducerConfig("a:1", transactional_id="loads", retries=0)


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), ("1", 1), ("0", 0)])
def test_acks_has_a_number_on_the_wire(acks: str, number: int) -> None:
    assert ProducerConfig("a:1", acks=acks).required_acks == number


@pytest.mark.parametrize(
    ("given", "idempotent"),
    [
        ({}, True),
        ({"acks": "-1"}, True),
        ({"acks": "1"}, False),
        ({"max_in_flight": 6}, False),
        ({"message_format": "v1"}, False),
        ({"message_format": "v0"}, False),
        ({"message_format": "v2"}, True),
    ],
)
def test_idempotence_gives_way_to_what_rules_it_out(given: dict[str, Any], idempotent: bool) -> None:
    assert ProducerConfig("a:1", **given).enable_idempotence is idempotent


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"acks": "1", "enable.idempotence": "true"},
            "acks=1 is not allowed; allowed: all, as long as enable.idempotence=true",
        ),
        (
            {"max.in.flight.requests.per.connection": "6", "enable.idempotence": "true"},
            "max.in.flight.requests.per.connection=6 is not allowed; "
            "allowed: 1 to 5, as long as enable.idempotence=true",
        ),
        (
            {"delivery.timeout.ms": "30004"},
            "delivery.timeout.ms=30004 is not allowed; "
            "allowed: at least linger.ms + request.timeout.ms, here 30005",
        ),
        (
            {"compression.type": "gzip", "compression.level": "10"},
            "compression.level=10 is not allowed; allowed with gzip: 1 to 9",
        ),
        (
            {"compression.type": "snappy", "compression.level": "1"},
            "compression.level=1 is not allowed; allowed with snappy: none: this codec has no levels",
        ),
        (
            {"compression.type": "brotli"},
            "options: compression.type=brotli is not allowed; allowed: one of none, gzip, snappy, lz4, zstd",
        ),
        (
            {"message.format": "v0", "enable.idempotence": "true"},
            "enable.idempotence=true is not allowed; allowed: false, as long as message.format=v0, "
            "which has no sequence numbers",
        ),
        (
            {"message.format": "v1", "compression.type": "zstd"},
            "compression.type=zstd is not allowed; allowed with message.format=v1: none, gzip, snappy, lz4",
        ),
        (
            {"broker.version.fallback": "0.8.1", "compression.type": "lz4"},
            "compression.type=lz4 is not allowed; allowed with message.format=v0 and "
            "broker.version.fallback=0.8.1: none, gzip, snappy",
        ),
        (
            {"message.format": "v3"},
            "options: message.format=v3 is not allowed; allowed: one of v2, v1, v0",
        ),
    ],
)
def test_properties_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(ProducerConfig, {"bootstrap.servers": "a:1", **given}, source="options")
    assert str(caught.value) == message


@pytest.mark.parametrize(("request_ms", "delivery_ms"), [(200_000, 200_005), (2**31 - 5, 2**31 - 1)])
def test_the_default_delivery_timeout_gives_way_to_longer_waits_up_to_what_is_allowed(
    request_ms: int, delivery_ms: int
) -> None:
    given = {"bootstrap.servers": "a:1", "request.timeout.ms": request_ms}
    config = parse(ProducerConfig, given, source="test")
    assert config.delivery_timeout_ms == delivery_ms
    assert parse(ProducerConfig, config.as_properties(), source="test") == config


@pytest.mark.parametrize("text", ["0.7.2", "0.8", "0.9", "0.9.1", "0.10.3", "0.11.0", "3.9.0", "old", ""])
def test_an_invalid_old_release_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse(ClientConfig, {"bootstrap.servers": "a:1", "broker.version.fallback": text}, source="options")
    assert str(raised.value) == (
        f"options: broker.version.fallback={text} is not allowed; allowed: one of 0.8.0, 0.8.1, 0.8.2, "
        "0.9.0, 0.10.0, 0.10.1, 0.10.2, with or without a patch level (0.8.2.2)"
    )


@pytest.mark.parametrize("cls", [ClientConfig, Client07Config])
def test_brokers_that_are_not_asked_must_be_known(cls: type[Config]) -> None:
    given = {"bootstrap.servers": "a:1"} if cls is ClientConfig else {}
    with pytest.raises(
        InvalidConfig, match=r"^api\.version\.request=false needs broker\.version\.fallback.*0\.8\.0"
    ):
        parse(cls, {**given, "api.version.request": "false"}, source="options")
    parse(
        cls, {**given, "api.version.request": "false", "broker.version.fallback": "0.9.0"}, source="options"
    )


def test_the_first_generations_clients_hand_on_what_brokers_are() -> None:
    told = Client07Config(protocol="0.8", api_version_request=False, broker_version_fallback="0.8.2")
    for_todays_wire = told.for_todays_wire(("a", 1))
    assert (for_todays_wire.api_version_request, for_todays_wire.fallback_release) == (False, "0.8.2")


@pytest.mark.parametrize(
    ("release", "message_format"),
    [(None, "v2"), ("0.8.0", "v0"), ("0.9.0.1", "v0"), ("0.10.0", "v1"), ("0.10.2", "v1")],
)
def test_the_format_is_that_of_the_brokers(release: str | None, message_format: str) -> None:
    config = ProducerConfig("a:1", broker_version_fallback=release)
    assert config.message_format == message_format
    assert config.enable_idempotence == (message_format == "v2")
    assert ProducerConfig("a:1", broker_version_fallback=release, message_format="v2").message_format == "v2"


@pytest.mark.parametrize("door", [kafkalog.Producer, kafkalog.Consumer, kafkalog.ConsumerConnector])
def test_an_address_in_place_of_properties_is_recognized(door: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidConfig, match=r'a mapping, such as \{"bootstrap.servers": .*\}, not as str$'):
        door("localhost:9092")
