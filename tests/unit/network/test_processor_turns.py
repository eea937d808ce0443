"""Turns between connections: how long one is served, work in steps, jobs in another thread, and all ends.

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

from kafkalog_broker.network.processor import SLICE_SECONDS, Handler, Processor
from kafkalog_broker.network.reply import Reply
from kafkalog_broker.network.socket_server import share_the_interpreter
from pyspark_kafkalog.steps import Job, Steps, resume_steps, run_steps
from tests.support.manual_clock import ManualClock
from tests.support.network.sockets import Client, Counts, frame, serving
from tests.support.until import until


class Rounds:
    """A processor whose rounds the test runs, and sockets to it."""

    def __init__(self, handler: Handler) -> None:
        self.clock = ManualClock()
        self.processor = Processor(
            0, handler, Counts(), max_request_bytes=1 << 20, max_idle_seconds=60.0, clock=self.clock
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
def rounds(handler: Handler) -> Iterator[Rounds]:
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
    """A handler: ``slow N`` takes N steps, each as long as the clock is told; everything else is echoed."""

    def __init__(self) -> None:
        self.step_seconds = SLICE_SECONDS
        self.advance: Callable[[float], None] = lambda seconds: None
        self.done: list[str] = []
        self.ended = 0

    def __call__(self, request: bytearray, reply: Reply) -> list[bytes] | None:
        name, _, count = request.decode().partition(" ")
        if name == "slow":
            reply.go_on_with(self.steps(int(count), reply))
            return None
        self.advance(self.step_seconds)
        self.done.append(name)
        return answered(bytes(request))

    def steps(self, count: int, reply: Reply) -> Steps[None]:
        try:
            for number in range(count):
                self.advance(self.step_seconds)
                self.done.append(f"step {number}")
                yield None
            reply.send(answered(f"slow {count}".encode()))
        finally:
            self.ended += 1


@pytest.fixture
def worked() -> Worked:
    return Worked()


def test_short_requests_are_answered_between_the_slices_of_a_long_one(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        slow, quick = running.connect(), running.connect()
        running.run()
        slow.sendall(frame(b"slow 6"))
        running.run()
        quick.sendall(frame(b"a"))
        running.run()
        assert received(quick) == [b"a"]
        running.run()
        quick.sendall(frame(b"b"))
        running.run(8)
        assert received(quick) == [b"b"]
        assert received(slow) == [b"slow 6"]
        # The slice with which a request was begun; then one for each round, after what was ready.
        assert worked.done == [
            "step 0", "step 1", "a", "step 2", "step 3", "b", "step 4", "step 5",
        ]  # fmt: skip


def test_a_work_that_fits_its_slice_is_answered_at_once(worked: Worked) -> None:
    with rounds(worked) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow 100") + frame(b"next"))
        running.run()
        assert received(one) == [b"slow 100", b"next"]


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
    worked.step_seconds = SLICE_SECONDS / 1000
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        one = running.connect()
        running.run()
        one.sendall(b"".join(frame(b"r%d" % number) for number in range(100)))
        running.run()
        assert len(received(one)) == 100


def test_many_queued_connections_do_not_add_up_for_one_that_comes_with_something_new(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        busy = [running.connect() for _ in range(20)]
        quick = running.connect()
        running.run()
        for sock in busy:
            sock.sendall(frame(b"slow 50"))
        running.run(25)
        before = len(worked.done)
        quick.sendall(frame(b"now"))
        running.run()
        assert received(quick) == [b"now"]
        assert worked.done.index("now") == before
        running.run(20)
        # Round robin: each of the twenty had one.
        assert len(worked.done) == before + 1 + 21


def test_what_follows_a_long_request_on_its_connection_waits_for_it(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow 5"))
        running.run(2)
        one.sendall(frame(b"after") + frame(b"last"))
        running.run(12)
        assert received(one) == [b"slow 5", b"after", b"last"]


def test_a_long_request_without_an_answer_keeps_the_order_too() -> None:
    order: list[str] = []

    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        if request != b"quiet":
            order.append("echo")
            return answered(bytes(request))

        def steps() -> Steps[None]:
            for _ in range(3):
                running.clock.advance(SLICE_SECONDS)
                order.append("quiet")
                yield None
            reply.no_answer()

        reply.go_on_with(steps())
        return None

    with rounds(handler) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"quiet") + frame(b"a"))
        running.run(8)
        assert received(one) == [b"a"]
        assert order == ["quiet"] * 3 + ["echo"]


def test_what_a_client_sent_before_it_left_is_handled() -> None:
    """A producer without acknowledgements sends and leaves: its requests must not be dropped with it."""
    done: list[str] = []

    def handler(request: bytearray, reply: Reply) -> None:
        def steps() -> Steps[None]:
            for _ in range(3):
                running.clock.advance(SLICE_SECONDS)
                yield None
            done.append(request.decode())
            reply.no_answer()

        reply.go_on_with(steps())

    with rounds(handler) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"a") + frame(b"b") + frame(b"c") + frame(b"cut")[:5])
        one.close()
        running.run(2)
        assert running.processor.closed_count == 0
        running.run(12)
        assert done == ["a", "b", "c"]
        assert running.processor.closed_count == 1


def test_a_client_that_only_stops_sending_gets_its_answers(worked: Worked) -> None:
    with rounds(worked) as running:
        worked.advance = running.clock.advance
        one = running.connect()
        running.run()
        one.sendall(frame(b"slow 5") + frame(b"b"))
        one.shutdown(socket.SHUT_WR)
        running.run(12)
        assert received(one) == [b"slow 5", b"b"]
        assert running.processor.closed_count == 1


def test_a_work_that_fails_closes_its_own_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        if request != b"bad":
            return answered(bytes(request))

        def steps() -> Steps[None]:
            running.clock.advance(SLICE_SECONDS)
            yield None
            raise ValueError("on purpose")

        reply.go_on_with(steps())
        return None

    with rounds(handler) as running:
        bad, good = running.connect(), running.connect()
        running.run()
        bad.sendall(frame(b"bad"))
        running.run(3)
        assert bad.recv(1) == b""
        good.sendall(frame(b"good"))
        running.run()
        assert received(good) == [b"good"]
    assert "on purpose" in caplog.text


def with_job(job: Job, clock: ManualClock | None = None) -> Handler:
    """A handler whose work has ``job`` done and answers with what came of it."""

    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        def steps() -> Steps[None]:
            try:
                found = yield job
            except ValueError as e:
                found = str(e).encode()
            reply.send(answered(request + b":" + found))

        reply.go_on_with(steps())
        return None

    return handler


def test_a_job_runs_in_another_thread_and_its_result_comes_back() -> None:
    threads: list[int] = []

    def job() -> bytes:
        threads.append(threading.get_ident())
        return b"result"

    with rounds(with_job(job)) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"a") + frame(b"b"))
        running.run()
        found: list[bytes] = []

        def both() -> bool:
            running.run()
            found.extend(received(one))
            return len(found) == 2

        until(both)
        assert found == [b"a:result", b"b:result"]
        assert threading.get_ident() not in threads


def test_what_a_job_raises_is_raised_in_the_work() -> None:
    def job() -> bytes:
        raise ValueError("no such thing")

    with rounds(with_job(job)) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"a"))
        found: list[bytes] = []

        def there() -> bool:
            running.run()
            found.extend(received(one))
            return bool(found)

        until(there)
        assert found == [b"a:no such thing"]


def test_a_job_whose_client_has_left_is_waited_for_and_its_request_ended() -> None:
    begin, ended = threading.Event(), threading.Event()

    def job() -> bytes:
        begin.wait(60)
        ended.set()
        return b"late"

    with rounds(with_job(job)) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"a"))
        running.run()
        one.close()
        running.run(2)
        assert running.processor.closed_count == 0
        begin.set()
        assert ended.wait(60)
        until(lambda: bool(running.processor._done))
        running.run(2)
        assert running.processor.closed_count == 1
        assert not running.processor._done
        assert not running.processor._turns


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


def test_a_stop_lets_a_work_end_within_its_grace_and_not_beyond(worked: Worked) -> None:
    for steps, expected in ((5, [b"slow 5"]), (5000, [])):
        with rounds(worked) as running:
            worked.advance = running.clock.advance
            one = running.connect()
            running.run()
            one.sendall(frame(b"slow %d" % steps) + frame(b"never begun"))
            running.run(2)
            running.processor.begin_stop(running.clock.monotonic() + 1.0)
            turns = 0
            while not running.processor._drained():
                running.run()
                turns += 1
            assert received(one) == expected
            assert turns <= 1.0 / SLICE_SECONDS + 2
    assert worked.ended == 2  # the other ended with its connection


def test_steps_are_finished_in_place_where_nobody_waits() -> None:
    def steps() -> Steps[str]:
        yield None
        first = yield lambda: "one"
        try:
            yield lambda: 1 // 0
        except ZeroDivisionError:
            return first + " and an error"
        return "nothing was raised"

    assert run_steps(steps()) == "one and an error"


def test_a_client_over_a_real_socket_sees_nothing_of_the_turns() -> None:
    def handler(request: bytearray, reply: Reply) -> None:
        def steps() -> Steps[None]:
            for _ in range(200):
                yield None
            found = yield lambda: bytes(request)
            reply.send(answered(found))

        reply.go_on_with(steps())

    with serving(handler) as server, Client(server.port) as client:
        bodies = [b"%d" % number for number in range(50)]
        client.send(*bodies)
        assert [client.receive() for _ in bodies] == bodies


def test_a_request_that_was_put_off_goes_on_in_its_own_turns() -> None:
    parked: list[Reply] = []

    def handler(request: bytearray, reply: Reply) -> list[bytes] | None:
        if request == b"park":
            parked.append(reply)
            return None
        return answered(bytes(request))

    def steps(reply: Reply) -> Steps[None]:
        for _ in range(3):
            running.clock.advance(SLICE_SECONDS)
            yield None
        reply.send(answered(b"parked"))

    with rounds(handler) as running:
        one, other = running.connect(), running.connect()
        running.run()
        one.sendall(frame(b"park") + frame(b"after"))
        running.run(2)
        thread = threading.Thread(target=lambda: parked[0].go_on_with(steps(parked[0])))
        thread.start()
        thread.join()
        other.sendall(frame(b"other"))
        running.run()
        assert received(other) == [b"other"]
        assert received(one) == []
        running.run(5)
        assert received(one) == [b"parked", b"after"]


def test_work_that_another_thread_gives_before_the_handler_returns_is_done_once() -> None:
    def handler(request: bytearray, reply: Reply) -> None:
        def steps() -> Steps[None]:
            yield None
            reply.send(answered(bytes(request)))

        thread = threading.Thread(target=lambda: reply.go_on_with(steps()))
        thread.start()
        thread.join()

    with rounds(handler) as running:
        one = running.connect()
        running.run()
        for body in (b"one", b"two"):
            one.sendall(frame(body))
            running.run(4)
            assert received(one) == [body]


def test_work_for_a_client_that_has_left_is_closed_unbegun() -> None:
    parked: list[Reply] = []
    taken: list[str] = []

    def handler(request: bytearray, reply: Reply) -> None:
        parked.append(reply)

    def steps() -> Steps[None]:
        taken.append("a step")
        yield None

    with rounds(handler) as running:
        one = running.connect()
        running.run()
        one.sendall(frame(b"park"))
        running.run()
        one.close()
        running.run()
        assert parked[0].closed
        parked[0].go_on_with(steps())
        running.run(2)
    assert not taken


@pytest.mark.parametrize("begun", [1, 2, 3, 4])
def test_steps_that_were_begun_go_on_where_they_were(begun: int) -> None:
    def steps() -> Steps[list[object]]:
        found: list[object] = []
        found.append((yield None))
        found.append((yield lambda: 1))
        try:
            yield lambda: 1 // 0
        except ZeroDivisionError:
            found.append("raised")
        found.append((yield lambda: 2))
        return found

    each = steps()
    wanted = next(each)
    for _ in range(begun - 1):
        try:
            wanted = each.send(wanted() if wanted is not None else None)
        except ZeroDivisionError as e:
            wanted = each.throw(e)
    assert run_steps(resume_steps(wanted, each)) == [None, 1, "raised", 2]


def test_steps_that_go_on_are_closed_with_the_rest() -> None:
    ended: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield None
            yield None
        finally:
            ended.append("closed")

    each = steps()
    rest = resume_steps(next(each), each)
    next(rest)
    rest.close()
    assert ended == ["closed"]


def test_threads_hand_the_interpreter_on_before_a_slice_is_over() -> None:
    before = sys.getswitchinterval()
    try:
        share_the_interpreter()
        assert sys.getswitchinterval() < SLICE_SECONDS
    finally:
        sys.setswitchinterval(before)
