"""Binds the port that the broker is reached at."""

from __future__ import annotations

import errno
import socket

from pyspark_kafkalog.errors import InvalidConfig


def listen(host: str, port: int, backlog: int, receive_buffer_bytes: int = -1) -> socket.socket:
    """A non-blocking listening socket on ``host`` (empty: all interfaces) and ``port`` (0: a free one).

    ``receive_buffer_bytes`` above 0 is set here, because accepted sockets inherit it in time to tell their
    peer how large a window it may use.

    Raises:
        InvalidConfig: the address cannot be used; the text names it and says why.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as e:
        raise InvalidConfig(f"listeners: cannot find the address of {host!r}: {e.strerror}") from e
    sock = socket.socket(family, kind, protocol)
    try:
        # A restarted broker must get its port back while old connections linger in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise InvalidConfig(f"listeners: cannot listen on {peer_name((host, port))}: {_reason(e)}") from e
    return sock


def peer_name(address: object) -> str:
    """``host:port`` of a socket address, for log lines."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address) or "unknown"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "address already in use; another broker or program listens there"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "permission denied; ports below 1024 need privileges"
    return error.strerror or str(error)
