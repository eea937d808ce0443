"""Addresses of listeners as Kafka writes them: ``PLAINTEXT://127.0.0.1:9092``. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark_kafkalog.config.definition import Check

_ENDPOINT = re.compile(r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.]+\]|[^\[\]:/,\s]*):([0-9]{1,5})")
_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Endpoint(NamedTuple):
    """``PROTOCOL://host:port``. An empty host is every interface; port 0 is any free one."""

    protocol: str
    host: str
    port: int

    @property
    def every_interface(self) -> bool:
        """Whether this is an address to listen on that nobody can connect to as it stands."""
        return self.host in _EVERY_INTERFACE

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Raises ValueError for anything that is not ``PLAINTEXT://host:port``."""
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None or found.group(1) != "PLAINTEXT" or int(found.group(3)) > 65535:
        raise ValueError(f"{text!r} is not PLAINTEXT://host:port")
    return Endpoint(found.group(1), found.group(2).strip("[]"), int(found.group(3)))


def _is_endpoint(text: str) -> bool:
    try:
        parse_endpoint(text)
    except ValueError:
        return False
    return True


def _is_reachable_endpoint(text: str) -> bool:
    return _is_endpoint(text) and not parse_endpoint(text).every_interface


endpoint = Check(
    "PLAINTEXT://host:port (an empty host is every interface, port 0 any free one)", _is_endpoint
)
reachable_endpoint = Check(
    "PLAINTEXT://host:port with a host that clients can reach (port 0 is the port that is listened on)",
    _is_reachable_endpoint,
)
