"""Entries on their way to a socket: part of a segment file, for sendfile, or converted bytes in memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kafkalog_broker.disk.filesystem import OpenFile
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from pyspark_kafkalog.formats.batch import MAGIC


@dataclass(slots=True, eq=False)
class FileSlice:
    """*Not thread-safe: one owner at a time.* Keeps its ``file`` open, of which it takes over one lease;
    ``formats`` are its segment's. ``len()`` is the whole size.
    """

    file: OpenFile | None
    position: int
    size: int
    formats: KnownFormats | None = None
    sent: int = 0
    aborted: Sequence[AbortedTransaction] = ()

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        self.close()

    def send_to(self, sock: socket.socket) -> bool:
        """Send what the socket takes now; True once done. Raises `EOFError`: file too short; `OSError`."""
        if self.sent == self.size:
            return True
        file = self._held()
        while self.sent < self.size:
            try:
                sent = os.sendfile(
                    sock.fileno(), file.file.fileno(), self.position + self.sent, self.size - self.sent
                )
            except BlockingIOError:
                return False
            if sent == 0:
                raise EOFError(f"{file.path.name} ends before byte {self.position + self.size}")
            self.sent += sent
        return True

    def read(self) -> bytes:
        if self.size == 0:
            return b""
        file = self._held()
        data = file.file.read_at(self.position, self.size)
        if len(data) != self.size:
            raise EOFError(f"{file.path.name} ends before byte {self.position + self.size}")
        return data

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes instead of sending them; 0 at the end. Raises as `send_to`."""
        room = min(len(buffer), self.size - self.sent)
        if not room:
            return 0
        file = self._held()
        count = os.preadv(file.file.fileno(), [buffer[:room]], self.position + self.sent)
        if not count:
            raise EOFError(f"{file.path.name} ends before byte {self.position + self.size}")
        self.sent += count
        return count

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self.size - position)
        return self._held().file.read_at(self.position + position, size) if size > 0 else b""

    @property
    def path(self) -> Path | None:
        return None if self.file is None else self.file.path

    @property
    def newest_magic(self) -> int | None:
        return None if self.formats is None else self.formats.newest_before(self.position + self.size)

    def learn(self, magic: int, size: int) -> None:
        if self.formats is not None:
            self.formats.learn(magic, self.position, self.position + size)

    def cut(self, size: int) -> None:
        self.size = min(self.size, size)

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.pool.release(file)

    def _held(self) -> OpenFile:
        if self.file is None:
            raise ValueError("the slice is closed")
        return self.file


NOTHING = FileSlice(None, 0, 0)
"""What a read at a log's end gets. Shared by all of them, so it must not be changed."""


class KnownFormats:
    """*Thread-safe for reading and `learn`; `appended` is called under the log's lock.* Exact for segments
    started in this run; for older ones, readers report what they find.
    """

    __slots__ = ("_bounds", "newest")

    def __init__(self, size_bytes: int) -> None:
        self.newest: int | None = None if size_bytes else 0
        """Latest format of any entry; None if unknown. Changed under the log's lock."""
        self._bounds = [0] * MAGIC
        # By magic: position before which no entry has a later format. A race only costs another walk.

    def appended(self, magic: int) -> None:
        """Called before an entry later than ``newest`` becomes readable."""
        if self.newest is not None and magic > self.newest:
            self.newest = magic

    def learn(self, magic: int, start: int, end: int) -> None:
        if magic < MAGIC and start <= self._bounds[magic] < end:
            self._bounds[magic] = end

    def newest_before(self, end: int) -> int | None:
        if self.newest is not None:
            return self.newest
        return next((magic for magic, known in enumerate(self._bounds) if known >= end), None)


@dataclass(slots=True, eq=False)
class MemorySlice:
    """*Not thread-safe: one owner at a time.* Entries in memory, for readers without transactions."""

    data: bytes
    newest_magic: int | None
    sent: int = 0
    aborted: ClassVar[Sequence[AbortedTransaction]] = ()

    def __len__(self) -> int:
        return len(self.data)

    def send_to(self, sock: socket.socket) -> bool:
        with memoryview(self.data) as view:
            while self.sent < len(view):
                try:
                    self.sent += sock.send(view[self.sent :])
                except BlockingIOError:
                    return False
        return True

    def read_into(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self.data) - self.sent)
        buffer[:count] = memoryview(self.data)[self.sent : self.sent + count]
        self.sent += count
        return count

    def read(self) -> bytes:
        return self.data

    def read_at(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]

    def learn(self, magic: int, size: int) -> None: ...

    def cut(self, size: int) -> None:
        self.data = self.data[:size]

    def close(self) -> None: ...
