"""Entries that were made for an answer: they go the way of a file's region, and are none."""

from __future__ import annotations

import socket


class MadeEntries:
    """*Not thread-safe: one owner at a time.* Entries in memory, of formats up to ``newest_magic``."""

    __slots__ = ("_data", "_sent", "newest_magic")

    def __init__(self, data: bytes, newest_magic: int) -> None:
        self._data = data
        self._sent = 0
        self.newest_magic: int | None = newest_magic

    def __len__(self) -> int:
        return len(self._data)

    def send_to(self, sock: socket.socket) -> bool:
        """Send what the socket takes now; True once all is sent. Raises `OSError`."""
        with memoryview(self._data) as view:
            while self._sent < len(view):
                try:
                    self._sent += sock.send(view[self._sent :])
                except BlockingIOError:
                    return False
        return True

    def read(self) -> bytes:
        """All of them."""
        return self._data

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position`` on, fewer at the end."""
        return self._data[position : position + size]

    def learn(self, magic: int, size: int) -> None:
        """All is known."""

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes only."""
        self._data = self._data[:size]

    def close(self) -> None:
        """Nothing is held."""
