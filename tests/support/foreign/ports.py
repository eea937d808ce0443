"""Ports for servers that must know theirs before they start, and start again on them."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports of which the system takes one for who connects, or asks for port 0: never used here."""

_COUNT = 10_000
_held: list[IO[bytes]] = []


def free_ports(count: int) -> list[int]:
    """Ports that belong to this process until it ends: nobody has them now, and no other test gets them."""
    directory = Path(tempfile.gettempdir()) / f"kafkalog-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    ports = (port for port in _candidates() if _is_ours(directory / str(port), port))
    found = list(itertools.islice(ports, count))
    assert len(found) == count, "no ports are left"
    return found


def _candidates() -> list[int]:
    lowest = int(_GIVEN_OUT.read_text().split()[0]) if _GIVEN_OUT.exists() else 32_768
    last = lowest if lowest > _COUNT + 1024 else 32_768
    first = os.getpid() * 31 % _COUNT  # processes that look at the same time begin in different places
    return [last - _COUNT + (first + number) % _COUNT for number in range(_COUNT)]


def _is_ours(lock: Path, port: int) -> bool:
    file = lock.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        file.close()
        return False
    _held.append(file)
    return True
