"""Slow readers, many idle connections, and clients that only send: what they cost the others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kafkalog_broker.network import processor
from kafkalog_broker.network.reply import Reply
from tests.support.network.sockets import Client, Rounds, frame, serving
from tests.support.until import until


def echo(request: bytearray, reply: Reply) -> None:
    reply.send([len(request).to_bytes(4, "big"), bytes(request)])


def test_slow_readers_do_not_delay_the_others_and_cost_bounded_memory() -> None:
    block = bytes(1 << 20)
    answer = [(20 * len(block)).to_bytes(4, "big"), *[block] * 20]

    def handler(request: bytearray, reply: Reply) -> None:
        if request == b"big":
            reply.send(answer)
        else:
            echo(request, reply)

    with serving(handler) as server, Client(server.port) as fast:
        slow = [Client(server.port, receive_buffer_bytes=4096) for _ in range(10)]
        for client in slow:
            client.send(*[b"big"] * 10)
        before = _resident_bytes()
        for _ in range(300):  # nobody has read what the slow ones get: it cannot be waited for
            fast.send(b"quick")
            assert fast.receive() == b"quick"
        assert _resident_bytes() - before < 8 << 20
        # A slow reader still gets all of it, in order.
        for _ in range(2):
            assert len(slow[0].receive()) == 20 << 20
        for client in slow:
            client.close()
        until(lambda: server.connection_count == 1)


def test_requests_after_a_parked_one_stay_in_the_kernel() -> None:
    parked: list[tuple[bytearray, Reply]] = []
    with serving(lambda request, reply: parked.append((request, reply))) as server:
        client = Client(server.port, timeout=0.3)
        client.send(b"parked")
        until(lambda: len(parked) == 1)
        before, sent = _resident_bytes(), 0
        try:
            while sent < 500_000_000:
                client.sock.sendall(frame(bytes(1_000_000)))
                sent += 1_000_004
        except TimeoutError:
            pass
        assert sent < 50_000_000
        assert _resident_bytes() - before < 8 << 20
        assert len(parked) == 1
        rounds = Rounds(server)
        until(lambda: len(rounds.events) >= 2)
        assert set(rounds.events) == {0}, "the selector spins on a channel that may not be read"
        client.close()
        echo(*parked[0])
        until(lambda: server.connection_count == 0)


def test_500_idle_connections_cost_little_memory_and_do_not_slow_the_active_one() -> None:
    with serving(echo) as server, Client(server.port) as active:
        before = _resident_bytes()
        idle = [Client(server.port) for _ in range(500)]
        until(lambda: server.connection_count == 501)
        for client in idle[::50]:
            client.send(b"first word")
            assert client.receive() == b"first word"
        # Both ends live in this process, so this counts the clients' objects too.
        assert (_resident_bytes() - before) / 500 < 16384
        crowded = Rounds(server)
        for _ in range(300):
            active.send(b"ping")
            assert active.receive() == b"ping"
        assert sum(crowded.events) <= 600, "idle connections take part in rounds"  # two for a request in two
        idling = Rounds(server)
        until(lambda: len(idling.events) >= 3)
        assert set(idling.events[1:3]) == {0}, "idle connections cost processor time"
        for client in idle:
            client.close()
        until(lambda: server.connection_count == 1)


def test_late_answers_from_many_threads_are_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that gets lost would leave a client waiting until the next tick, which never comes here."""
    monkeypatch.setattr(processor, "_TICK_SECONDS", 3600.0)
    work: list[tuple[bytearray, Reply]] = []
    ready, done = threading.Semaphore(0), threading.Event()

    def handler(request: bytearray, reply: Reply) -> None:
        work.append((request, reply))
        ready.release()

    def worker() -> None:
        while True:
            ready.acquire()
            if done.is_set():
                return
            echo(*work.pop())

    workers = [threading.Thread(target=worker) for _ in range(4)]
    for t in workers:
        t.start()
    with serving(handler) as server:
        clients = [Client(server.port) for _ in range(8)]
        for i in range(200):
            for client in clients:
                client.send(b"%d" % i)
            for client in clients:
                assert client.receive() == b"%d" % i
        for client in clients:
            client.close()
    done.set()
    for _ in workers:
        ready.release()
    for t in workers:
        t.join()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
