from __future__ import annotations

import pytest

from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import Property, describe, is_secret, masked, parse
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:geheim@h/db", "postgresql://***@h/db"),
        ("postgresql://u:ge/h@e?im#@h:5432/db?x=1: no", "postgresql://***@h:5432/db?x=1: no"),
        ("'u:geheim@h:9092' is not host:port", "'***@h:9092' is not host:port"),
        ("postgresql://h/db?user=u&password=geheim&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("kafka.sasl.password=geheim", "kafka.sasl.password=***"),
        ("sasl.password:geheim", "sasl.password:***"),
        ('Module required username="u" password="ge heim";', 'Module required username="u" password=***;'),
        ("{'sasl.password': 'geheim', 'a': 1}", "{'sasl.password': ***, 'a': 1}"),
        ('{"ssl.key.password": "ge, heim"}', '{"ssl.key.password": ***}'),
        (
            'PlainLoginModule required user_a="geheim" "user_b@c"=x;',
            'PlainLoginModule required user_a=*** "user_b@c"=***;',
        ),
        ("sasl.password = a;b,c, acks=1", "sasl.password = ***, acks=1"),
        ("user_id=5, password=a;user=b", "user_id=5, password=***;user=b"),
        (
            "option 'kafka.sasl.password': 'ge heim' is not allowed",
            "option 'kafka.sasl.password': *** is not allowed",
        ),
        ('{"a": 1,\n "client.secret": 7}', '{"a": 1,\n "client.secret": ***'),
        ("sasl.password:1234", "sasl.password:***"),
        ("client.secret:1234-5678 access_token:12345678", "client.secret:*** access_token:***"),
        ("host:9092,[::1]:9093", "host:9092,[::1]:9093"),
        ("topic 'secret': UNKNOWN_TOPIC_OR_PARTITION", None),
        ("group 'auth.token': its coordinator is not available", None),
        ("topic 'my_password': no partition 3", None),
        ("cannot connect to my-secret:9092: refused, nor to 'a.token:9093'", None),
        ('startingOffsets={"secret":{"0":23,"1":-2}}, assign={"token":[0,1]}', None),
        ("check the registry's user and password: it said 401", None),
        ("a.b" * 10_000, None),  # in quadratic time this takes minutes
        ("me@example.org wrote /a/b to file:///c", None),
    ],
)
def test_secrets_are_masked_and_nothing_else(text: str, shown: str | None) -> None:
    assert masked(text) == (text if shown is None else shown)


def test_names_say_which_properties_are_secret() -> None:
    for name in ("kafka.sasl.password", "ssl.keystore.password", "sasl.jaas.config", "client.secret"):
        assert is_secret(name)
    assert [item.name for item in describe(ProducerConfig) if is_secret(item.name)] == [
        "sasl.jaas.config",
        "sasl.password",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.truststore.password",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
    ]


def test_a_refused_value_of_a_secret_property_is_not_echoed() -> None:
    item = Property("f", "sasl.password", None, int, (), None, "", "", "", "", True)
    with pytest.raises(InvalidConfig, match=r"^s: sasl\.password=\*\*\* is not allowed"):
        item.read("geheim", "s")
    with pytest.raises(InvalidConfig, match=r"bootstrap\.servers=\*\*\*@h is not allowed") as raised:
        parse(ClientConfig, {"bootstrap.servers": "u:geheim@h"}, source="s")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.password", "ssl.ca.location"])
def test_credentials_without_a_protocol_are_an_error_and_no_plain_connection(name: str) -> None:
    given = {"bootstrap.servers": "a:1", name: "geheim"}
    with pytest.raises(InvalidConfig, match=f"^{name}: security.protocol is missing") as raised:
        parse(ProducerConfig, given, source="s")
    assert "to have these properties ignored, to PLAINTEXT" in str(raised.value)
    assert "geheim" not in str(raised.value)
    plain = parse(ProducerConfig, given | {"security.protocol": "PLAINTEXT"}, source="s")
    assert plain.security_protocol == "PLAINTEXT"


def test_a_private_key_is_masked_whatever_its_property_is() -> None:
    key = "-----BEGIN EC PRIVATE KEY-----\ngeheim\ngeheim\n-----END EC PRIVATE KEY-----"
    assert masked(f"x: {key} and {key[:45]}") == "x: *** and ***"
