"""Principals, and clients' addresses as ACLs name them."""

from __future__ import annotations

import pytest

from kafkalog_broker.security.authentication import Principal, java_address, parse_principal


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::a:0b%eth0", "fe80:0:0:0:0:0:a:b"),
        ("::ffff:10.1.2.3", "10.1.2.3"),  # an IPv4 client of a socket that listens on both
        ("not an address", "not an address"),
    ],
)
def test_addresses_are_written_as_java_writes_them(given: str, expected: str) -> None:
    assert java_address(given) == expected


def test_a_principal_is_read_as_it_is_written() -> None:
    name = "CN=a:b,OU=F"
    assert parse_principal(f" User:{name} ") == Principal("User", name)
    assert str(parse_principal("User:alice")) == "User:alice"


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice", "User"])
def test_half_a_principal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a principal; write User:name"):
        parse_principal(text)
