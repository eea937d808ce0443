"""`sasl.jaas.config` as users paste it, and what is refused, in Kafka's words."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.security.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

PASTED = {
    f'{PLAIN} required username="KEY" password="SECRET";': {"username": "KEY", "password": "SECRET"},
    f'{PLAIN} required username=$ConnectionString password="Endpoint=sb://N/;SharedAccessKey=K=";': {
        "username": "$ConnectionString",
        "password": "Endpoint=sb://N/;SharedAccessKey=K=",
    },
    f"{PLAIN}\n  REQUIRED\n  username = 'a b'\n\tpassword='it''s'\n;": None,
    f"{PLAIN} required /* who */ username=alice // the rest\n password=a/lost\n;": {
        "username": "alice",
        "password": "a",
    },
    f'{PLAIN} required "user_a@b"="x" user_c="y";': {"user_a@b": "x", "user_c": "y"},
    f'{PLAIN} required username="one"username="two";': {"username": "two"},
    rf'{PLAIN} required password="\"\\\101\18\477\t";': {"password": "\"\\A\x018'7\t"},
    f"{PLAIN} required /\nusername=lost\n;": {},
    f"{PLAIN} required;": {},
    f'{PLAIN} required password="\u00fc#";#': None,
    "a required b=\u00e9t\u00e9.1-2;": {"b": "\u00e9t\u00e9.1-2"},
}


@pytest.mark.parametrize("text", [text for text, options in PASTED.items() if options is not None])
def test_options_are_read_as_kafka_reads_them(text: str) -> None:
    entry = parse_jaas(text)
    assert (entry.flag, dict(entry.options)) == ("required", PASTED[text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Login module not specified in JAAS config"),
        (f'{PLAIN} required password="x"', "JAAS config entry not terminated by semi-colon"),
        (f'{PLAIN} needed password="x";', "Invalid login module control flag in JAAS config"),
        (PLAIN, "Login module control flag not specified in JAAS config"),
        (f"{PLAIN} required; x", "Login module control flag not specified in JAAS config"),
        (f"{PLAIN} required; {PLAIN} required;", "contains 2 login modules, should be 1 module"),
        (f"{PLAIN} required password=1secret;", "Value not specified for key 'password' in JAAS config"),
        (f"{PLAIN} required username=a password;", "Value not specified for key 'password' in JAAS config"),
        (f"KafkaClient {{ {PLAIN} required; }};", "leave out the name and braces"),
        (f'{PLAIN} required password="sec\nret";', "Value not specified for key '...' in JAAS config"),
    ],
)
def test_refusals_are_kafkas(text: str, message: str) -> None:
    with pytest.raises(ValueError) as e:
        parse_jaas(text)
    assert message in str(e.value)


def test_an_entry_shows_no_option_and_only_true_is_true() -> None:
    entry = parse_jaas(f'kafkashaded.{PLAIN} required password="hidden" tokenauth=True;')
    assert "hidden" not in repr(entry)
    assert (entry.is_true("tokenauth"), entry.is_true("password")) == (True, False)
