"""Kafka 0.7's wire by hand: frames made with `struct` from the protocol's tables, not by our own codec."""

from __future__ import annotations

import gzip
import socket
import struct
import zlib
from types import TracebackType

LATEST, EARLIEST = -1, -2
NONE, GZIP, SNAPPY = 0, 1, 2


def entry(payload: bytes, *, magic: int = 1, attributes: int = 0, crc: int | None = None) -> bytes:
    """A message as it lies in a message set; ``crc`` replaces the right one."""
    head = bytes([magic]) if magic == 0 else bytes([magic, attributes])
    crc = zlib.crc32(payload) if crc is None else crc
    message = head + struct.pack(">I", crc) + payload
    return struct.pack(">i", len(message)) + message


def zipped(*entries: bytes) -> bytes:
    """A gzip entry that holds entries."""
    return entry(gzip.compress(b"".join(entries), mtime=0), attributes=GZIP)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def produce(topic: str, partition: int, messages: bytes) -> bytes:
    return framed(struct.pack(">h", 0) + _produce(topic, partition, messages))


def fetch(topic: str, partition: int, offset: int, max_size: int) -> bytes:
    return framed(struct.pack(">h", 1) + _fetch(topic, partition, offset, max_size))


def multi_fetch(*fetches: tuple[str, int, int, int]) -> bytes:
    return framed(struct.pack(">hh", 2, len(fetches)) + b"".join(_fetch(*each) for each in fetches))


def multi_produce(*produces: tuple[str, int, bytes]) -> bytes:
    return framed(struct.pack(">hh", 3, len(produces)) + b"".join(_produce(*each) for each in produces))


def offsets(topic: str, partition: int, when: int, max_offsets: int) -> bytes:
    body = struct.pack(">iqi", partition, when, max_offsets)
    return framed(struct.pack(">h", 4) + _topic(topic) + body)


def offsets_in(answer: bytes | None) -> list[int]:
    """The offsets of a good answer to OFFSETS."""
    assert answer is not None
    error, count = struct.unpack_from(">hi", answer)
    assert error == 0
    return list(struct.unpack(f">{count}q", answer[6:]))


def _topic(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">h", len(name)) + name


def _fetch(topic: str, partition: int, offset: int, max_size: int) -> bytes:
    return _topic(topic) + struct.pack(">iqi", partition, offset, max_size)


def _produce(topic: str, partition: int, messages: bytes) -> bytes:
    return _topic(topic) + struct.pack(">ii", partition, len(messages)) + messages


class Wire07:
    """*Not thread-safe.* One connection to a KAFKA07 listener."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=90)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Wire07:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next answer without its size; None when the broker closes the connection instead."""
        head = self._exactly(4)
        if head is None:
            return None
        body = self._exactly(struct.unpack(">i", head)[0])
        assert body is not None, "the connection ended inside an answer"
        return body

    def ask(self, request: bytes) -> bytes | None:
        self.send(request)
        return self.receive()

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                assert not data, "the connection ended inside an answer"
                return None
            data += more
        return data
