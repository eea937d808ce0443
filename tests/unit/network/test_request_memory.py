"""Memory for requests, and connections that share it."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafkalog_broker.network.channel import READ_AHEAD_BYTES, SMALL_BYTES, Channel, RequestMemory, Reservation
from kafkalog_broker.network.processor import Processor
from kafkalog_broker.network.reply import Reply
from tests.support.manual_clock import ManualClock
from tests.support.network.sockets import Counts, ManualWorkers, frame

MIB = 1 << 20
LARGE = 10 * MIB


def _never() -> None:
    raise AssertionError("woken without need")


class TestRequestMemory:
    def test_those_that_do_not_fit_are_served_in_their_order(self) -> None:
        memory = RequestMemory(32 * MIB, largest_bytes=LARGE)
        first, second = memory.reserve(LARGE, _never), memory.reserve(LARGE, _never)
        assert (first.granted, second.granted) == (True, True)
        woken: list[str] = []
        third = memory.reserve(5 * MIB, lambda: woken.append("third"))
        fourth = memory.reserve(3 * MIB, lambda: woken.append("fourth"))
        assert (third.granted, fourth.granted, memory.waiting_count) == (False, False, 2)
        memory.release(first)
        assert (woken, third.granted, fourth.granted) == (["third", "fourth"], True, True)
        assert (memory.reserved_bytes, memory.waiting_count) == (18 * MIB, 0)

    def test_small_requests_pass_a_large_one_that_waits_and_cannot_keep_it_out(self) -> None:
        memory = RequestMemory(32 * MIB, largest_bytes=LARGE)
        held = [memory.reserve(8 * MIB, _never) for _ in range(3)]
        woken: list[str] = []
        large = memory.reserve(LARGE, lambda: woken.append("large"))
        small = [memory.reserve(SMALL_BYTES, lambda: woken.append("small")) for _ in range(6)]
        assert [each.granted for each in small] == [True] * 4 + [False] * 2
        memory.release(held[0])
        assert not large.granted  # 8 MiB are free, and are kept for it: the small ones do not get them
        assert not small[4].granted
        memory.release(held[1])
        assert (large.granted, woken[0]) == (True, "large")
        for each in (large, held[2], *small):
            memory.release(each)
        assert (memory.reserved_bytes, memory.waiting_count) == (0, 0)

    def test_small_requests_have_the_other_part_too_when_nobody_waits_for_it(self) -> None:
        memory = RequestMemory(32 * MIB, largest_bytes=LARGE)
        assert all(memory.reserve(SMALL_BYTES, _never).granted for _ in range(16))
        assert not memory.reserve(SMALL_BYTES, _never).granted

    def test_the_largest_request_fits_even_where_a_part_is_kept(self) -> None:
        memory = RequestMemory(LARGE, largest_bytes=LARGE)
        assert memory.reserve(LARGE, _never).granted
        assert memory.reserve(MIB, _never).granted

    def test_who_leaves_makes_room_for_the_next(self) -> None:
        memory = RequestMemory(32 * MIB, largest_bytes=LARGE)
        held = memory.reserve(20 * MIB, _never)
        woken: list[str] = []
        head = memory.reserve(LARGE, _never)
        behind = memory.reserve(4 * MIB, lambda: woken.append("behind"))
        memory.release(head)
        assert (behind.granted, woken) == (True, ["behind"])
        memory.release(held)
        memory.release(behind)
        assert (memory.reserved_bytes, memory.waiting_count) == (0, 0)

    def test_what_is_there_already_is_counted_though_it_does_not_fit(self) -> None:
        memory = RequestMemory(8 * MIB, largest_bytes=2 * MIB)
        taken = [memory.take(MIB) for _ in range(20)]
        assert (memory.reserved_bytes, memory.crowded) == (20 * MIB, True)
        waiting = memory.reserve(MIB, lambda: None)
        assert waiting.granted  # the part for all is free
        for each in taken:
            memory.release(each)
        assert not memory.crowded

    def test_without_a_limit_everything_fits(self) -> None:
        memory = RequestMemory()
        assert all(memory.reserve(1 << 40, _never).granted for _ in range(10))

    def test_the_limit_always_holds_and_every_request_has_its_turn(self) -> None:
        chance = random.Random(12)
        memory = RequestMemory(40 * MIB, largest_bytes=LARGE)
        all_of_them: list[Reservation] = []
        open_ones: list[Reservation] = []
        for _ in range(3000):
            if chance.random() < 0.55:
                size = chance.choice([5000, MIB, SMALL_BYTES, 5 * MIB, LARGE])
                open_ones.append(memory.reserve(size, lambda: None))
                all_of_them.append(open_ones[-1])
            elif open_ones:
                memory.release(open_ones.pop(chance.randrange(len(open_ones))))
            assert memory.reserved_bytes <= 40 * MIB
        while open_ones:
            done = next(each for each in open_ones if each.granted)
            open_ones.remove(done)
            memory.release(done)
        assert (memory.reserved_bytes, memory.waiting_count) == (0, 0)


def _put(channel: Channel, data: bytes) -> int:
    """As a processor reads: until the channel wants no more. Returns how much it took."""
    done = 0
    while done < len(data) and channel.reads_on():
        buffer = channel.buffer()
        count = min(len(buffer), len(data) - done)
        buffer[:count] = data[done : done + count]
        del buffer
        channel.received(count)
        done += count
    return done


class TestChannel:
    def test_a_body_is_not_read_before_all_of_it_is_reserved(self) -> None:
        memory = RequestMemory(LARGE, largest_bytes=LARGE)
        held = memory.reserve(LARGE, _never)
        woken: list[int] = []
        channel = Channel(LARGE, memory, lambda: woken.append(1))
        stream = frame(bytes(3 * MIB))
        taken = _put(channel, stream)
        assert (taken <= 4096, channel.waits_for_memory, channel.reads_on()) == (True, True, False)
        memory.release(held)
        assert (woken, channel.reads_on()) == ([1], True)
        assert _put(channel, stream[taken:]) == len(stream) - taken
        assert memory.reserved_bytes == 3 * MIB
        assert len(channel.take() or b"") == 3 * MIB
        assert memory.reserved_bytes == 3 * MIB
        channel.answer([b"done"])
        assert memory.reserved_bytes == 0

    def test_a_connection_that_ends_gives_back_what_it_has_and_what_it_waits_for(self) -> None:
        memory = RequestMemory(8 * MIB, largest_bytes=LARGE)
        one, other = Channel(LARGE, memory), Channel(LARGE, memory)
        _put(one, frame(bytes(5 * MIB))[: 4 * MIB])
        _put(other, frame(bytes(6 * MIB)))
        assert (memory.reserved_bytes, memory.waiting_count) == (5 * MIB, 1)
        other.close()
        assert (memory.reserved_bytes, memory.waiting_count) == (5 * MIB, 0)
        one.close()
        assert memory.reserved_bytes == 0

    def test_whole_requests_that_wait_are_counted_until_each_is_done(self) -> None:
        memory = RequestMemory(8 * MIB, largest_bytes=LARGE)
        channel = Channel(LARGE, memory)
        _put(channel, frame(b"1") + frame(bytes(10_000)) + frame(bytes(20_000)) + frame(b"4"))
        sizes = []
        while (request := channel.take()) is not None:
            sizes.append((len(request), memory.reserved_bytes))
            channel.answer(None)
        assert sizes == [(1, 30_000), (10_000, 30_000), (20_000, 20_000), (1, 0)]

    def test_a_client_that_does_not_read_its_answer_reserves_nothing_large(self) -> None:
        memory = RequestMemory(LARGE, largest_bytes=LARGE)
        channel = Channel(LARGE, memory)
        _put(channel, frame(b"first"))
        channel.take()
        stream = frame(bytes(5 * MIB))
        taken = _put(channel, stream)
        assert (READ_AHEAD_BYTES <= taken < 2 * READ_AHEAD_BYTES, memory.reserved_bytes) == (True, 0)
        channel.answer(None)
        assert channel.reads_on()
        assert memory.reserved_bytes == 5 * MIB
        assert _put(channel, stream[taken:]) == len(stream) - taken

    def test_while_memory_is_short_not_even_usual_requests_are_read_unreserved(self) -> None:
        memory = RequestMemory(8 * MIB, largest_bytes=2 * MIB)
        channel = Channel(LARGE, memory)
        usual = frame(bytes(100_000))
        assert _put(channel, usual) == len(usual)
        channel.take()
        channel.answer(None)
        assert len(channel.buffer()) == len(usual)  # the next is expected to be as long
        channel.rest()
        for _ in range(8):
            memory.take(MIB)
        memory.reserve(6 * MIB, _never)
        assert _put(channel, usual) <= 4096


class _Rounds:
    """A processor whose rounds the test runs, with a clock of its own; it answers with what it was sent."""

    def __init__(self, memory: RequestMemory, *, idle: float, receive: float) -> None:
        self.clock = ManualClock()
        self.requests: list[int] = []
        self.processor = Processor(
            0, self._handle, Counts(), max_request_bytes=LARGE, max_idle_seconds=idle, clock=self.clock,
            max_receive_seconds=receive, memory=memory, workers=ManualWorkers(),
        )  # fmt: skip
        self.processor._thread_id = threading.get_ident()
        self._ends: list[socket.socket] = []
        self.answer = b"ok"

    def _handle(self, request: bytearray, reply: Reply) -> list[bytes]:
        self.requests.append(len(request))
        return [frame(self.answer)]

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self._ends.append(ours)
        self.processor.adopt(theirs, f"peer {len(self._ends)}")
        return ours

    def run(self, seconds: float = 0.0) -> None:
        """Some rounds, ``seconds`` later."""
        self.clock.advance(seconds)
        for _ in range(4):
            self.processor._wakeup.wake()
            self.processor._turn()

    def close(self) -> None:
        self.processor._shut_down()
        for end in self._ends:
            end.close()


@contextmanager
def _rounds(
    memory: RequestMemory | None = None, *, idle: float = 600.0, receive: float = 60.0
) -> Iterator[_Rounds]:
    running = _Rounds(memory or RequestMemory(), idle=idle, receive=receive)
    try:
        yield running
    finally:
        running.close()


def _closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


class TestProcessor:
    @pytest.mark.parametrize("first", [b"\0", frame(bytes(100))[:50], frame(bytes(MIB))[:50_000]])
    def test_a_request_that_trickles_is_closed_and_gives_its_memory_back(self, first: bytes) -> None:
        memory = RequestMemory(LARGE, largest_bytes=LARGE)
        with _rounds(memory) as running:
            slow = running.connect()
            running.run()
            slow.sendall(first)
            running.run(1)
            for _ in range(5):
                running.run(10)
                slow.sendall(b"\0" if len(first) > 1 else b"")
            assert not _closed(slow)
            running.run(12)
            assert _closed(slow)
            assert memory.reserved_bytes == 0

    def test_requests_that_are_whole_in_time_restart_the_clock(self) -> None:
        with _rounds() as running:
            steady = running.connect()
            running.run()
            stream = frame(bytes(1000)) * 10
            for position in range(0, len(stream), 500):  # each takes 50 s, and a part of the next is there
                steady.sendall(stream[position : position + 500])
                running.run(25)
            assert running.requests == [1000] * 10
            assert len(running.processor._connections) == 1

    def test_the_time_it_waits_for_memory_is_not_the_clients(self) -> None:
        memory = RequestMemory(LARGE, largest_bytes=LARGE)
        held = memory.reserve(LARGE, _never)
        with _rounds(memory, idle=100.0) as running:
            waiting = running.connect()
            running.run()
            waiting.sendall(frame(bytes(3 * MIB))[:8000])
            for _ in range(20):
                running.run(50)
            assert not _closed(waiting)
            memory.release(held)
            running.run(1)
            for position in range(8000, 3 * MIB + 4, 64 << 10):
                waiting.sendall(frame(bytes(3 * MIB))[position : position + (64 << 10)])
                running.run()
            assert running.requests == [3 * MIB]
            assert memory.reserved_bytes == 0

    def test_who_sends_but_does_not_take_its_answer_is_idle(self) -> None:
        with _rounds(idle=60.0) as running:
            deaf = running.connect()
            running.answer = bytes(8 * MIB)
            running.run()
            for _ in range(8):
                deaf.sendall(frame(b"more"))
                running.run(10)
            assert running.requests == [4]
            assert not running.processor._connections

    def test_who_takes_its_answer_slowly_is_not(self) -> None:
        with _rounds(idle=60.0) as running:
            slow = running.connect()
            running.answer = bytes(8 * MIB)
            running.run()
            slow.sendall(frame(b"once"))
            for _ in range(20):
                running.run(10)
                slow.recv(1 << 20)
            assert len(running.processor._connections) == 1
