"""Listener addresses in Kafka's form: ``PLAINTEXT://127.0.0.1:9092``, ``CLIENT://:9093``. Pure.

``listener.security.protocol.map`` gives each listener name a protocol, by default that of the same name.
``KAFKA07`` (our name) is Kafka 0.7's protocol, all others are current.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyspark_kafkalog.config.definition import Check

_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9A-Fa-f:.]+\]|[^\[\]:/,\s]*):([0-9]{1,5})")
PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
KAFKA07 = "KAFKA07"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, KAFKA07)

_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Endpoint(NamedTuple):
    """``NAME://host:port``. Empty host: all interfaces; port 0: any free one."""

    name: str
    host: str
    port: int

    @property
    def every_interface(self) -> bool:
        """Whether it is a wildcard address, which clients cannot connect to."""
        return self.host in _EVERY_INTERFACE

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None or int(found.group(3)) > 65535:
        raise ValueError(f"{text!r} is not NAME://host:port")
    return Endpoint(found.group(1).upper(), found.group(2).strip("[]"), int(found.group(3)))


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse a comma-separated list. Raises `ValueError`: invalid, or a duplicate name or address."""
    found = tuple(map(parse_endpoint, text.split(",")))
    addresses = [(each.host, each.port) for each in found if each.port]
    if len({each.name for each in found}) < len(found) or len(set(addresses)) < len(addresses):
        raise ValueError(f"{text!r} has two listeners of one name or at one address")
    return found


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse ``NAME:PROTOCOL,...``; unlisted protocols map to themselves. Raises `ValueError`."""
    found = {protocol: protocol for protocol in PROTOCOLS}
    for pair in filter(None, (word.strip() for word in text.split(","))):
        name, colon, protocol = (part.strip() for part in pair.partition(":"))
        if not name or not colon or protocol.upper() not in PROTOCOLS:
            raise ValueError(f"{pair!r} is not NAME:PROTOCOL with one of {', '.join(PROTOCOLS)}")
        found[name.upper()] = protocol.upper()
    return found


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _are_endpoints(text: str) -> bool:
    return _parses(parse_endpoints, text)


def _are_reachable(text: str) -> bool:
    return _are_endpoints(text) and not any(each.every_interface for each in parse_endpoints(text))


endpoints = Check(
    "PLAINTEXT://host:port, another name in place of PLAINTEXT, or several with commas between"
    " (an empty host is every interface, port 0 any free one)",
    _are_endpoints,
)
reachable_endpoints = Check(
    "PLAINTEXT://host:port, another name in place of PLAINTEXT, or several with commas between,"
    " with hosts that clients can reach (port 0 is the port that is listened on)",
    _are_reachable,
)
protocol_map = Check(
    f"NAME:PROTOCOL, several with commas between; protocols: {', '.join(PROTOCOLS)}",
    partial(_parses, parse_protocol_map),
)
