"""Principals, and the security state of a connection. Pure."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """A client's identity, written as in Kafka: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""A client without a login or certificate."""


def parse_principal(text: str) -> Principal:
    """Parse ``User:alice``; the name may contain colons. Raises `ValueError`: kind or name is missing."""
    kind, colon, name = text.strip().partition(":")
    if not kind or not colon or not name:
        raise ValueError(f"{text!r} is no principal; write {USER}:name")
    return Principal(kind, name)


class Session:
    """*Not thread-safe: changed by its connection's processor thread, between two requests.*

    ``host`` is the client's address as Java prints it and ACLs name it: ``127.0.0.1``, ``0:0:0:0:0:0:0:1``.
    ``listener`` is the name of the listener it connected to.
    """

    __slots__ = ("host", "listener", "principal")

    def __init__(self, host: str, listener: str, principal: Principal = ANONYMOUS) -> None:
        self.host = host
        self.listener = listener
        self.principal = principal


def java_address(host: str) -> str:
    """A socket address as Java prints it: IPv6 in full, IPv4-mapped addresses as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
