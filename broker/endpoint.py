"""Addresses of listeners as Kafka writes them: ``PLAINTEXT://127.0.0.1:9092``. Pure.

A listener speaks one protocol: ``PLAINTEXT`` is today's wire, ``KAFKA07`` (a name of ours) that of Kafka 0.7.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark_kafkalog.config.definition import Check

_ENDPOINT = re.compile(r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.]+\]|[^\[\]:/,\s]*):([0-9]{1,5})")
PLAINTEXT = "PLAINTEXT"
KAFKA07 = "KAFKA07"
PROTOCOLS = (PLAINTEXT, KAFKA07)

_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Endpoint(NamedTuple):
    """``PROTOCOL://host:port``. An empty host is every interface; port 0 is any free one."""

    protocol: str
    host: str
    port: int

    @property
    def every_interface(self) -> bool:
        """Whether this is an address to listen on that clients cannot connect to as it stands."""
        return self.host in _EVERY_INTERFACE

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Raises ValueError for anything that is not ``PLAINTEXT://host:port`` or ``KAFKA07://host:port``."""
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None or found.group(1) not in PROTOCOLS or int(found.group(3)) > 65535:
        raise ValueError(f"{text!r} is not {' or '.join(PROTOCOLS)}://host:port")
    return Endpoint(found.group(1), found.group(2).strip("[]"), int(found.group(3)))


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """One or more, separated by commas, each of a protocol of its own.
    Raises `ValueError`: one of them is none, or two are of one protocol or at one address.
    """
    found = tuple(map(parse_endpoint, text.split(",")))
    addresses = [(each.host, each.port) for each in found if each.port]
    if len({each.protocol for each in found}) < len(found) or len(set(addresses)) < len(addresses):
        raise ValueError(f"{text!r} has two listeners of one protocol or at one address")
    return found


def _are_endpoints(text: str) -> bool:
    try:
        parse_endpoints(text)
    except ValueError:
        return False
    return True


def _are_reachable(text: str) -> bool:
    return _are_endpoints(text) and not any(each.every_interface for each in parse_endpoints(text))


endpoints = Check(
    "PLAINTEXT://host:port, KAFKA07://host:port, or both with a comma between"
    " (an empty host is every interface, port 0 any free one)",
    _are_endpoints,
)
reachable_endpoints = Check(
    "PLAINTEXT://host:port, KAFKA07://host:port, or both with a comma between,"
    " with hosts that clients can reach (port 0 is the port that is listened on)",
    _are_reachable,
)
