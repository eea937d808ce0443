"""Answers made of parts of files: in order between buffers, closed whatever becomes of the connection."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.network.reply import Reply
from tests.support.network.sockets import Client, serving


def echo(request: bytearray, reply: Reply) -> None:
    reply.send([len(request).to_bytes(4, "big"), bytes(request)])


class FileRegion:
    """A whole file, sent with sendfile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = path.stat().st_size
        self._position = 0
        self.closed = threading.Event()

    def __len__(self) -> int:
        return self._size

    def send_to(self, sock: socket.socket) -> bool:
        while self._position < self._size:
            try:
                sent = os.sendfile(
                    sock.fileno(), self._file.fileno(), self._position, self._size - self._position
                )
            except BlockingIOError:
                return False
            if not sent:
                raise EOFError(f"file ends at byte {self._position}")
            self._position += sent
        return True

    def read(self) -> bytes:
        return os.pread(self._file.fileno(), self._size, 0)

    def read_into(self, buffer: memoryview) -> int:
        count = os.preadv(self._file.fileno(), [buffer], self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        self.closed.set()


@pytest.fixture
def data_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "data"
    path.write_bytes(random.Random(3).randbytes(30_000_000))
    return path


def test_file_regions_go_out_between_buffers_and_are_closed(data_file: Path) -> None:
    regions = [FileRegion(data_file), FileRegion(data_file)]
    size = 2 * 30_000_000 + 10

    def handler(request: bytearray, reply: Reply) -> None:
        reply.send([size.to_bytes(4, "big"), b"head ", regions[0], memoryview(b"mid"), regions[1], b"!!"])

    with serving(handler) as server, Client(server.port) as client:
        client.send(b"fetch")
        data = data_file.read_bytes()
        assert client.receive() == b"head " + data + b"mid" + data + b"!!"
        assert all(r.closed.is_set() for r in regions)


def test_a_client_that_leaves_in_the_middle_of_a_region_costs_only_its_connection(data_file: Path) -> None:
    regions = [FileRegion(data_file), FileRegion(data_file)]

    def handler(request: bytearray, reply: Reply) -> None:
        if request == b"fetch":
            reply.send([b"\x03\x93\x87\x00", *regions])
        else:
            echo(request, reply)

    with serving(handler) as server, Client(server.port) as other:
        client = Client(server.port)
        client.send(b"fetch")
        assert len(client.sock.recv(100_000)) > 0
        client.close()  # with data unread: the kernel resets the connection
        assert all(r.closed.wait(60) for r in regions)
        other.send(b"fine")
        assert other.receive() == b"fine"


def test_a_file_that_became_shorter_closes_the_connection_and_is_logged(
    data_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    region = FileRegion(data_file)
    os.truncate(data_file, 1000)
    with (
        serving(lambda request, reply: reply.send([bytes(4), region])) as server,
        Client(server.port) as client,
    ):
        client.send(b"fetch")
        assert len(client._exactly(1004)) == 1004
        assert client.ended()
        assert region.closed.wait(60)
    assert "file ends at byte 1000" in caplog.text
