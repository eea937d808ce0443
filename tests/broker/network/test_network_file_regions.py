"""Answers made of parts of files: in order between buffers, closed whatever becomes of the connection."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.file_slice import FileSlice
from kafkalog_broker.network.reply import Reply
from tests.support.network.sockets import Client, serving
from tests.support.until import until


def echo(request: bytearray, reply: Reply) -> None:
    reply.send([len(request).to_bytes(4, "big"), bytes(request)])


SIZE = 30_000_000


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(random.Random(3).randbytes(SIZE))
    return path


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    files = OpenFiles(FileSystem(), 16)
    yield files
    until(lambda: files.in_use == 0)
    files.close()


def test_file_regions_go_out_between_buffers_and_are_closed(data_file: Path, files: OpenFiles) -> None:
    regions = [FileSlice(files.acquire(data_file), 0, SIZE) for _ in range(2)]
    size = 2 * SIZE + 10

    def handler(request: bytearray, reply: Reply) -> None:
        reply.send([size.to_bytes(4, "big"), b"head ", regions[0], memoryview(b"mid"), regions[1], b"!!"])

    with serving(handler) as server, Client(server.port) as client:
        client.send(b"fetch")
        data = data_file.read_bytes()
        assert client.receive() == b"head " + data + b"mid" + data + b"!!"
        until(lambda: files.in_use == 0)


def test_a_client_that_leaves_in_the_middle_of_a_region_costs_only_its_connection(
    data_file: Path, files: OpenFiles
) -> None:
    regions = [FileSlice(files.acquire(data_file), 0, SIZE) for _ in range(2)]

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
        until(lambda: files.in_use == 0)
        other.send(b"fine")
        assert other.receive() == b"fine"


def test_a_file_that_became_shorter_closes_the_connection_and_is_logged(
    data_file: Path, files: OpenFiles, caplog: pytest.LogCaptureFixture
) -> None:
    region = FileSlice(files.acquire(data_file), 0, SIZE)
    os.truncate(data_file, 1000)
    with (
        serving(lambda request, reply: reply.send([bytes(4), region])) as server,
        Client(server.port) as client,
    ):
        client.send(b"fetch")
        assert len(client._exactly(1004)) == 1004
        assert client.ended()
        until(lambda: files.in_use == 0)
    assert f"data ends before byte {SIZE}" in caplog.text
