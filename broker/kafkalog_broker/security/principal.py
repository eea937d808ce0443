"""Who a client is: its principal, and what is known of its connection. Pure."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """Who acts, as Kafka writes it: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""A client that has shown neither a login nor a certificate."""


def parse_principal(text: str) -> Principal:
    """``User:alice``; the name may contain colons. Raises `ValueError`: the kind or the name is missing."""
    kind, colon, name = text.strip().partition(":")
    if not kind or not colon or not name:
        raise ValueError(f"{text!r} is no principal; write {USER}:name")
    return Principal(kind, name)


class Session:
    """*Not thread-safe: changed by the processor thread of its connection, between two requests.*

    ``host`` is the client's address as Java prints it, which is how ACLs name it: ``127.0.0.1``,
    ``0:0:0:0:0:0:0:1``. ``listener`` is the name of the listener that it connected to.
    """

    __slots__ = ("host", "listener", "principal")

    def __init__(self, host: str, listener: str, principal: Principal = ANONYMOUS) -> None:
        self.host = host
        self.listener = listener
        self.principal = principal


def java_address(host: str) -> str:
    """An address of a socket as Java prints it: no zeros left out, an IPv4 address never as one of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
