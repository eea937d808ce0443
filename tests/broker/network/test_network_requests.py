"""Requests over real sockets: order, cutting, limits, and what a failure does to the other connections."""

from __future__ import annotations

import os
import queue
import random
import struct
import threading
from pathlib import Path

import pytest

from kafkalog_broker.network.reply import Reply
from tests.support.network.sockets import Client, Counts, FakeRegion, frame, serving
from tests.support.until import until


def echo(request: bytearray, reply: Reply) -> None:
    reply.send([len(request).to_bytes(4, "big"), bytes(request)])


def returned_echo(request: bytearray, reply: Reply) -> list[bytes]:
    return [len(request).to_bytes(4, "big"), bytes(request)]


class Parked:
    """A handler that keeps every reply for the test to answer."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[bytearray, Reply]] = queue.Queue()

    def __call__(self, request: bytearray, reply: Reply) -> None:
        self.requests.put((request, reply))

    def next(self) -> tuple[bytearray, Reply]:
        return self.requests.get(timeout=60)

    def answer(self) -> bytes:
        request, reply = self.next()
        echo(request, reply)
        return bytes(request)


def test_answers_that_are_returned_and_those_that_are_sent_leave_in_order() -> None:
    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        if request[0] % 3 == 0:
            return returned_echo(request, reply)
        if request[0] % 3 == 1:
            echo(request, reply)
        else:
            threading.Timer(0.001, echo, (request, reply)).start()
        return None

    bodies = [bytes([number]) * (1 + 700 * (number % 100)) for number in range(120)]
    with serving(handler) as server, Client(server.port) as client:
        sender = threading.Thread(target=client.send, args=bodies)
        sender.start()
        assert [client.receive() for _ in bodies] == bodies
        sender.join()


def test_an_answer_both_sent_and_returned_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    region = FakeRegion(b"data")

    def handler(request: bytearray, reply: Reply) -> list[object] | None:
        echo(request, reply)
        return [region] if request == b"twice" else None

    with serving(handler) as server, Client(server.port) as one, Client(server.port) as other:  # type: ignore[arg-type]
        one.send(b"twice")
        assert one.receive() == b""
        other.send(b"once")
        assert other.receive() == b"once"
    assert region.closed_count == 1
    assert "is answered already" in caplog.text


def test_large_requests_and_answers_pass_whole() -> None:
    body = random.Random(1).randbytes(20_000_000)
    with serving(echo) as server, Client(server.port) as client:
        sender = threading.Thread(target=client.send, args=(body, b"small"))
        sender.start()
        assert client.receive() == body
        assert client.receive() == b"small"
        sender.join()


@pytest.mark.parametrize("size", [2**31 - 1, 1001, -1, -(2**31)])
def test_a_frame_that_claims_too_much_or_less_than_nothing_closes_only_its_connection(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(echo, max_request_bytes=1000) as server, Client(server.port) as other:
        before = _resident_bytes()
        with Client(server.port) as client:
            client.sock.sendall(struct.pack(">i", size))
            assert client.ended()
        other.send(b"still here")
        assert other.receive() == b"still here"
        assert _resident_bytes() - before < 8 << 20
    assert f"{size}" in caplog.text
    assert "closing the connection from 127.0.0.1:" in caplog.text


@pytest.mark.parametrize("size", [2**31 - 1, -1])
def test_requests_before_a_bad_size_are_answered_before_the_connection_is_closed(size: int) -> None:
    parked = Parked()
    with serving(echo, max_request_bytes=1000) as server, Client(server.port) as client:
        client.sock.sendall(frame(b"one") + frame(b"two") + struct.pack(">i", size))
        assert client.receive() == b"one"
        assert client.receive() == b"two"
        assert client.ended()
    with serving(parked, max_request_bytes=1000) as server, Client(server.port) as client:
        client.sock.sendall(frame(b"late") + struct.pack(">i", size))
        assert parked.answer() == b"late"
        assert client.receive() == b"late"
        assert client.ended()


def test_a_claim_within_the_limit_takes_memory_only_for_what_came() -> None:
    with serving(echo, max_request_bytes=2**31 - 1) as server:
        counts = server._processors[0]._metrics
        assert isinstance(counts, Counts)
        clients = [Client(server.port) for _ in range(20)]
        before = _resident_bytes()
        for client in clients:
            client.sock.sendall(struct.pack(">i", 2**31 - 1) + b"only this")
        clients[0].sock.sendall(bytes(100_000))
        until(lambda: counts.bytes_in.value == 20 * 13 + 100_000)
        assert _resident_bytes() - before < 8 << 20
        assert server.connection_count == 20
        for client in clients:
            client.close()
        until(lambda: server.connection_count == 0)


def test_half_a_request_before_the_end_of_a_connection_is_dropped() -> None:
    parked = Parked()
    with serving(parked) as server:
        with Client(server.port) as client:
            client.sock.sendall(frame(b"whole") + frame(b"half of it")[:9])
            assert parked.answer() == b"whole"
            assert client.receive() == b"whole"
        until(lambda: server.connection_count == 0)
        assert parked.requests.empty()


def test_a_failing_handler_closes_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: bytearray, reply: Reply) -> None:
        if request == b"bad":
            raise ValueError("cannot do this")
        echo(request, reply)

    with serving(handler) as server, Client(server.port) as good, Client(server.port) as bad:
        bad.send(b"bad", b"never seen")
        assert bad.ended()
        good.send(b"good")
        assert good.receive() == b"good"
    assert "cannot do this" in caplog.text


def test_answers_given_before_a_failure_are_sent_before_the_connection_is_closed() -> None:
    def handler(request: bytearray, reply: Reply) -> None:
        if request == b"bad":
            raise ValueError("cannot do this")
        if request == b"close":
            reply.close()
        else:
            echo(request, reply)

    with serving(handler) as server:
        for last in (b"bad", b"close"):
            with Client(server.port) as client:
                client.send(b"one", b"two", last)
                assert client.receive() == b"one"
                assert client.receive() == b"two"
                assert client.ended()


def test_a_handler_that_fails_after_it_answered_frees_the_answer() -> None:
    region = FakeRegion(b"data")

    def handler(request: bytearray, reply: Reply) -> None:
        reply.send([region])
        raise ValueError("too late")

    with serving(handler) as server, Client(server.port) as client:
        client.send(b"x")
        assert client.ended()
        until(lambda: region.closed_count >= 1)


def test_a_reply_may_close_the_connection_later() -> None:
    parked = Parked()
    with serving(parked) as server, Client(server.port) as client:
        client.send(b"x")
        parked.next()[1].close()
        assert client.ended()


def test_an_answer_for_another_connection_may_be_given_while_handling_a_request() -> None:
    waiting: list[tuple[bytearray, Reply]] = []

    def handler(request: bytearray, reply: Reply) -> None:
        if request.startswith(b"wait"):
            waiting.append((request, reply))
            return
        for parked in waiting:
            echo(*parked)
        waiting.clear()
        echo(request, reply)

    with serving(handler) as server, Client(server.port) as first, Client(server.port) as second:
        first.send(b"wait 1", b"wait 2")
        until(lambda: len(waiting) == 1)
        second.send(b"go")
        assert second.receive() == b"go"
        assert first.receive() == b"wait 1"
        until(lambda: len(waiting) == 1)
        second.send(b"go")
        assert first.receive() == b"wait 2"


def test_on_close_is_called_when_the_client_leaves_while_its_request_is_in_hand() -> None:
    parked, gone = Parked(), threading.Event()
    with serving(parked) as server:
        client = Client(server.port)
        client.send(b"fetch", b"and one behind it")
        _, reply = parked.next()
        reply.on_close(gone.set)
        assert not reply.closed
        client.close()
        assert gone.wait(60)
        assert reply.closed
        region = FakeRegion(b"data")
        reply.send([region])
        assert region.closed_count == 1
        until(lambda: server.connection_count == 0)
        assert parked.requests.empty()


def test_bytes_and_connections_are_counted() -> None:
    with serving(echo) as server, Client(server.port) as client:
        counts = server._processors[0]._metrics
        assert isinstance(counts, Counts)
        client.send(b"12345", b"678")
        client.receive()
        client.receive()
        assert counts.connections.value == 1
        until(lambda: counts.bytes_in.value == 16)
        assert counts.bytes_out.value == 16
        client.close()
        until(lambda: counts.connections.value == 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
