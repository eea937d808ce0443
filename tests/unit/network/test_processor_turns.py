"""Turns between connections, requests that a worker handles, and how all ends.

No thread runs: the test calls the processor's rounds itself, and its clock moves only where it says so.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafkalog_broker.network.processor import SLICE_SECONDS, Processor, RequestHandler
from kafkalog_broker.network.reply import Reply
from kafkalog_broker.network.socket_server import share_the_interpreter
from tests.support.manual_clock import ManualClock
from tests.support.network.sockets import Client, Counts, ManualWorkers, frame, serving


class Rounds:
    """A processor whose rounds the test runs, and sockets to it."""

    def __init__(self, handler: RequestHandler) -> None:
        self.clock = ManualClock()
        self.workers = ManualWorkers()
        self.processor = Processor(
            0,
            handler,
            Counts(),
            max_request_bytes=1 << 20,
            max_idle_seconds=60.0,
            clock=self.clock,
            workers=self.workers,
        )
        self.processor._thread_id = threading.get_ident()
        self._ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.settimeout(60)
        self._ends.append(ours)
        self.processor.adopt(theirs, f"peer {len(self._ends)}")
        return ours

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            self.processor._wakeup.wake()  # a round without anything to do would wait
            self.processor._turn()

    def close(self) -> None:
        self.processor._shut_down()
        for end in self._ends:
            end.close()


@contextmanager
def rounds(handler: RequestHandler) -> Iterator[Rounds]:
    running = Rounds(handler)
    try:
        yield running
    finally:
        running.close()


def received(sock: socket.socket) -> list[bytes]:
    """The whole answers that are there now."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while selector.select(0):
            piece = sock.recv(1 << 16)
            if not piece:
                break
            data += piece
    bodies = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        bodies.append(data[4:end])
        data = data[end:]
    return bodies


def answered(body: bytes) -> list[bytes]:
    return [frame(body)]


class Worked:
    """A handler: a worker echoes what begins with ``slow``, or gives no answer to ``quiet``; it raises for
    ``bad``, and leaves the answer to ``park`` to others. Everything else is echoed at once.
    """

    def __init__(self) -> None:
        self.seconds = SLICE_SECONDS
        self.advance: Callable[[float], None] = lambda seconds: None
        self.done: list[str] = []
        self.parked: list[Reply] = []

    def __call__(self, request: bytearray, reply: Reply) -> list[bytes] | None:
        name = request.decode()
        if name.startswith(("slow", "quiet", "bad", "park")):
            reply.work_on(lambda: self.work(name, reply))
            return None
        self.advance(self.seconds)
        self.done.append(name)
        return answered(bytes(request))

    def work(self, name: str, reply: Reply) -> None:
        self.done.append(name)
        if name == "bad":
            raise ValueError("on purpose")
        if name == "park":
            self.parked.append(reply)
        elif name.startswith("quiet"):
            reply.no_answer()
        else:
            reply.send(answered(name.encode()))


@pytest.fixture
def worked() -> Worked:
    return Worked()


def test_pipelined_requests_take_turns_with_those_of_others(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        greedy, modest = running.connect(), running.connect()
        running.run()
        greedy.sendall(b"".join(frame(b"g%d" % number) for number in range(6)))
        running.run()
        modest.sendall(frame(b"m"))
        running.run()
        assert received(modest) == [b"m"]
        assert len(received(greedy)) < 5
        running.run(10)
        assert worked.done.index("m") <= 3
        assert [name for name in worked.done if name != "m"] == [f"g{number}" for number in range(6)]


def test_requests_that_are_quick_go_out_together_in_one_turn(worked: Worked) -> None:
    worked.seconds = SLICE_SECONDS / 1000
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        one = running.connect()
        running.run()
        one.sendall(b"".join(frame(b"r%d" % number) for number in range(100)))
        running.run()
        assert len(received(one)) == 100


def test_reading_ahead_stops_while_requests_wait_for_their_turn(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        greedy = running.connect()
        running.run()
        greedy.setblocking(False)
        body = frame(b"x" * 1000)
        sent = 0
        for _ in range(300):
            running.run()
            try:
                while True:
                    sent += greedy.send(body * 64)
            except BlockingIOError:
                pass
        (connection,) = running.processor._connections
        assert connection.channel._ahead_bytes < 3 * (64 << 10)


def test_others_are_served_while_a_worker_handles_a_request(worked: Worked) -> None:
    with rounds(worked) as running:
        slow, quick = running.connect(), running.connect()
        running.run()
        slow.sendall(frame(b"slow"))
        quick.sendall(frame(b"a"))
        running.run()
        assert received(quick) == [b"a"]
        assert received(slow) == []
        running.workers.run()
        running.run()
        assert received(slow) == [b"slow"]


def test_what_follows_such_a_request_on_its_connection_waits_for_it(worked: Worked) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow 1") + frame(b"after") + frame(b"quiet") + frame(b"last"))
        running.run(3)
        assert worked.done == []
        running.workers.run()
        running.run(2)
        assert received(one) == [b"slow 1", b"after"]
        running.workers.run()
        running.run(2)
        assert received(one) == [b"last"]
        assert worked.done == ["slow 1", "after", "quiet", "last"]


def test_what_a_client_sent_before_it_left_is_handled(worked: Worked) -> None:
    """A producer without acknowledgements sends and leaves: its requests must not be dropped with it."""
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"quiet a") + frame(b"quiet b") + frame(b"c") + frame(b"cut")[:5])
        one.close()
        for expected in (["quiet a"], ["quiet a", "quiet b"]):
            running.run(2)
            assert running.processor.closed_count == 0
            running.workers.run()
            assert worked.done == expected
        running.run(2)
        assert worked.done == ["quiet a", "quiet b", "c"]
        assert running.processor.closed_count == 1


def test_a_client_that_only_stops_sending_gets_its_answers(worked: Worked) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow") + frame(b"b"))
        one.shutdown(socket.SHUT_WR)
        running.run(2)
        running.workers.run()
        running.run(2)
        assert received(one) == [b"slow", b"b"]
        assert running.processor.closed_count == 1


def test_a_request_that_waits_for_something_else_is_given_up_when_its_client_has_left(worked: Worked) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"park"))
        one.close()
        running.run(2)
        assert running.processor.closed_count == 0
        running.workers.run()
        running.run(2)
        assert running.processor.closed_count == 1
        (reply,) = worked.parked
        assert reply.closed
        reply.work_on(lambda: worked.done.append("late"))
        running.workers.run()
    assert worked.done == ["park"]


def test_a_request_that_fails_in_a_worker_closes_its_own_connection_alone(
    worked: Worked, caplog: pytest.LogCaptureFixture
) -> None:
    with rounds(worked) as running:
        bad, good = running.connect(), running.connect()
        running.run()
        bad.sendall(frame(b"bad"))
        running.run()
        running.workers.run()
        running.run(2)
        assert bad.recv(1) == b""
        good.sendall(frame(b"good"))
        running.run()
        assert received(good) == [b"good"]
    assert "on purpose" in caplog.text


def test_a_request_that_was_put_off_may_go_to_a_worker_later(worked: Worked) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"park") + frame(b"after"))
        running.run(2)
        running.workers.run()
        (reply,) = worked.parked
        thread = threading.Thread(target=lambda: reply.work_on(lambda: reply.send(answered(b"parked"))))
        thread.start()
        thread.join()
        running.run(2)
        assert received(one) == []
        running.workers.run()
        running.run(2)
        assert received(one) == [b"parked", b"after"]


def test_more_work_that_is_given_before_the_first_has_returned_is_done() -> None:
    """What a fetch waits for may come while the worker that parked it is not done yet."""

    def handler(request: bytearray, reply: Reply) -> None:
        def again() -> None:
            reply.send(answered(bytes(request)))

        reply.work_on(lambda: reply.work_on(again))

    with rounds(handler) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"fetch"))
        running.run()
        running.workers.run()
        running.run(2)
        assert received(one) == [b"fetch"]


def test_a_stop_waits_for_a_worker_within_its_grace_and_not_beyond(worked: Worked) -> None:
    for seconds, expected in ((0.5, [b"slow"]), (1.5, [])):
        with rounds(worked) as running:
            one = running.connect()
            running.run()
            one.sendall(frame(b"slow") + frame(b"never begun"))
            running.run()
            running.processor.begin_stop(running.clock.monotonic() + 1.0)
            running.clock.advance(seconds)
            if not running.processor._drained():
                running.workers.run()
                running.run(2)
            assert running.processor._drained()
            assert received(one) == expected


def test_a_request_whose_connection_closes_before_its_turn_is_dropped(
    worked: Worked,
) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow"))
        running.run()
        (connection,) = running.processor._connections
        reply = connection.reply
        assert reply is not None
        running.processor.begin_stop(running.clock.monotonic())
        assert running.processor._drained()
        running.processor._shut_down()
        assert reply.work is None
        running.workers.run()
    assert worked.done == []


def test_a_client_over_a_real_socket_sees_nothing_of_the_workers() -> None:
    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        if request[-1] % 3:
            return answered(bytes(request))
        reply.work_on(lambda: reply.send(answered(bytes(request))))
        return None

    with serving(handler) as server, Client(server.port) as client:
        bodies = [b"%d" % number for number in range(500)]
        client.send(*bodies)
        assert [client.receive() for _ in bodies] == bodies


def test_threads_hand_the_interpreter_on_before_a_slice_is_over() -> None:
    before = sys.getswitchinterval()
    try:
        share_the_interpreter()
        assert sys.getswitchinterval() < SLICE_SECONDS
    finally:
        sys.setswitchinterval(before)
