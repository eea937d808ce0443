"""The thread that reads requests, calls the handler, and sends the answers."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from broker.metrics import Metrics
from broker.network.channel import Channel, RequestMemory
from broker.network.reply import Outcome, Part, Reply
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.steps import Job, Steps

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

Handler = Callable[[bytearray, Reply], "Sequence[Part] | None"]
"""Gets a request without its size prefix, which it may keep and change, and the reply it owes.

What it returns, unless None, is the answer, and the reply is then not for use: that costs less than
`Reply.send`, which any thread may call. What takes more than some ms goes to `Reply.go_on_with`.
"""

_READS_PER_TURN = 8
"""Reads of one connection before the others have their turn, while it keeps filling its buffer."""

SLICE_SECONDS = 0.002
"""How long one connection is served before the others have their turn. A request that was begun is handled to
its end, except for what it left to `Reply.go_on_with`.
"""

_TICK_SECONDS = 0.5
"""How often idle connections are looked for and metrics are brought up to date."""


class Wakeup:
    """A pipe whose reading end sits in a selector.

    *Thread-safe: any thread may `wake` and `close`; only the waiting thread may `clear`.* The lock keeps
    a late `wake` from writing into a file that was given the pipe's number after `close`.

    The order of three steps keeps a wake-up from being lost. A waker first queues its work, then calls
    `wake`; the waiting thread first calls `clear`, then looks at the queue. `clear` drains the pipe
    before it forgets that it was woken: the other way round, a byte written in between would be drained
    with the flag left set, and no later wake would write.
    """

    __slots__ = ("_closed", "_lock", "_read_fd", "_woken", "_write_fd")

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._woken = False
        self._closed = False

    def fileno(self) -> int:
        """The end that becomes readable."""
        return self._read_fd

    def wake(self) -> None:
        """Make the reading end readable. Wake-ups that were not yet noticed count as one."""
        if self._woken:
            return
        with self._lock:
            if self._woken or self._closed:
                return
            self._woken = True
            try:
                os.write(self._write_fd, b"\0")
            except BlockingIOError:
                pass  # a full pipe wakes as well as one byte

    def clear(self) -> None:
        """Forget past wake-ups; look at the queue only after this."""
        try:
            while len(os.read(self._read_fd, 512)) == 512:
                pass
        except BlockingIOError:
            pass
        self._woken = False

    def close(self) -> None:
        """Give the pipe up; later wake-ups do nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)


class _CloseRequested(Exception):
    """A reply asked for the end of its connection."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A socket with its channel. Owned by the processor."""

    sock: socket.socket
    peer: str
    session: object
    last_active: float  # when bytes moved; while an answer is being sent, bytes of that
    coming_in_since: float
    channel: Channel = field(init=False)
    coming_in: int = 0  # the request that was there only in part at the last tick
    open: bool = True
    ended: bool = False  # the client sends nothing more; what it has sent is still handled
    mask: int = 0  # what the selector watches; 0 = not registered
    reply: Reply | None = None  # of the request in hand
    queued: bool = False  # for its next turn
    job: Future[Any] | None = None  # done for the work in hand, which does not know it yet

    @property
    def has_turns(self) -> bool:
        """Whether requests in its queue or the work in hand are left to be done."""
        return self.queued or (self.reply is not None and self.reply.work is not None)


class Processor:
    """Runs one selector loop over its connections; the handler is called in the same thread.

    *Thread-safe: `adopt`, `settled` and `begin_stop` only queue work and wake the thread.* Everything else,
    the connections and their channels among it, belongs to the thread. ``reply_lock`` guards the state
    of replies and nothing more; no call is made while it is held.

    An answer that the handler gives before it returns is sent in the same turn, without another round of
    the selector; answers to requests that came together go out together. Any other answer goes through a
    queue.

    Connections take turns of `SLICE_SECONDS`: one that has more to be done then, requests that wait or work
    in hand (`Reply.go_on_with`), goes to the end of ``_turns``. After each such turn the selector is asked
    which connections have something new: a client with a short request waits for one slice only.
    A work's jobs run in ``_worker``, a single thread that is made when it is first needed.

    A client that has left is served to the end of what it sent, unless an answer cannot be sent: producers
    without acknowledgements send and leave. A request that waits for another thread is given up then.

    A request may take ``max_receive_seconds`` from its first byte to its last. ``memory`` is shared with the
    other processors; None for no limit.
    """

    def __init__(
        self,
        number: int,
        handler: Handler,
        metrics: Metrics,
        *,
        max_request_bytes: int,
        max_idle_seconds: float,
        clock: Clock,
        max_receive_seconds: float = float("inf"),
        memory: RequestMemory | None = None,
    ) -> None:
        self.reply_lock = threading.Lock()
        self.closed_count = 0
        """Connections this processor has closed since its start; written by its thread alone."""
        self._handler = handler
        self._metrics = metrics
        self._max_request_bytes = max_request_bytes
        self._max_idle_seconds = max_idle_seconds
        self._max_receive_seconds = max_receive_seconds
        self._memory = memory if memory is not None else RequestMemory()
        self._admitted: deque[_Connection] = deque()
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._adopted: deque[tuple[socket.socket, str, object]] = deque()
        self._answered: deque[Reply] = deque()
        self._turns: deque[_Connection] = deque()
        self._slice_ends = 0.0
        self._worker: ThreadPoolExecutor | None = None
        self._done: deque[tuple[Reply, Future[Any]]] = deque()
        self._resumed: deque[Reply] = deque()
        self._serving: Reply | None = None
        self._now = clock.monotonic()
        self._tick_seconds = min(_TICK_SECONDS, max(0.01, min(max_idle_seconds, max_receive_seconds) / 4))
        self._next_tick = self._now + self._tick_seconds
        self._bytes_in = 0
        self._bytes_out = 0
        self._thread_id = -1
        self._deadline: float | None = None  # set once, by begin_stop
        self._wakeup = Wakeup()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._name = f"kafkalog-network-{number}"
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def adopt(self, sock: socket.socket, peer: str, session: object = None) -> None:
        """Take over a connected, non-blocking socket; its requests' replies have the ``session``."""
        self._adopted.append((sock, peer, session))
        self._wakeup.wake()

    def settled(self, reply: Reply) -> None:
        """The outcome of ``reply`` is decided. Called once per reply, by any thread."""
        if threading.get_ident() != self._thread_id:
            self._answered.append(reply)
            self._wakeup.wake()
        elif reply is self._serving:
            self._serving = None  # `_serve` sees it when the handler returns
        else:
            self._answered.append(reply)  # looked at before the selector is

    def has_work(self, reply: Reply) -> None:
        """``reply`` has work left: its connection has a turn. Called by any thread."""
        if threading.get_ident() != self._thread_id:
            self._resumed.append(reply)
            self._wakeup.wake()
        elif reply is not self._serving:  # else `_serve` sees it when the handler returns
            self._resumed.append(reply)

    def begin_stop(self, deadline: float) -> None:
        """Begin no further request, let those in hand be answered until ``deadline`` (a time of the clock's
        `monotonic`), then close all. The acceptor must have been stopped before.
        """
        self._deadline = deadline
        self._wakeup.wake()

    def join(self) -> None:
        """Wait until everything is closed and the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        while not self._drained():
            try:
                self._turn()
            except Exception:
                # Nothing is known that leads here; ending the thread would leave a broker that is
                # up and deaf, so it goes on, slowly enough not to flood the log.
                _log.exception("thread %s: a round failed", self._thread.name)
                self._clock.sleep(_TICK_SECONDS)
        self._shut_down()

    def _turn(self) -> None:
        """One round: wait, read and write what is ready, take in what was queued, give one turn."""
        events = self._selector.select(self._wait_seconds())
        self._now = self._clock.monotonic()
        for key, mask in events:
            connection: _Connection | None = key.data
            if connection is None:
                self._wakeup.clear()
            else:
                self._guarded(self._ready, connection, mask)
        while self._answered:
            reply = self._answered.popleft()
            if reply.closed:
                reply.drop()
            else:
                self._guarded(self._late_answer, cast("_Connection", reply.token), reply)
        while self._resumed:
            reply = self._resumed.popleft()
            if reply.closed:
                _end_work(reply)
            else:
                self._guarded(self._take_turn, cast("_Connection", reply.token), reply)
        while self._done:
            self._take_back(*self._done.popleft())
        while self._admitted:
            self._guarded(self._go_on_reading, self._admitted.popleft(), None)
        while self._adopted:
            self._take_over(*self._adopted.popleft())
        if self._turns:
            self._next_turn(self._turns.popleft())
        if self._now >= self._next_tick:
            self._tick()

    def _wait_seconds(self) -> float:
        if self._turns:
            return 0.0
        if self._deadline is None:
            return self._tick_seconds
        return max(0.0, min(self._tick_seconds, self._deadline - self._now))

    def _guarded(
        self, work: Callable[[_Connection, _T], None], connection: _Connection, argument: _T
    ) -> None:
        """Do some work for one connection; whatever fails, only that connection is closed."""
        self._slice_ends = self._clock.monotonic() + SLICE_SECONDS
        try:
            work(connection, argument)
        except _CloseRequested:
            self._close(connection, last_words=True)
        except FrameTooLarge as e:
            _log.warning("closing the connection from %s: %s", connection.peer, e)
            self._close(connection, last_words=True)
        except OSError as e:
            _log.debug("connection from %s lost: %s", connection.peer, e)
            self._close(connection)
        except Exception:
            _log.exception("closing the connection from %s", connection.peer)
            self._close(connection, last_words=True)

    def _ready(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE or not connection.channel.wants_write:
            connection.last_active = self._now
        if mask & selectors.EVENT_WRITE and self._send(connection):
            self._serve(connection)
        if mask & selectors.EVENT_READ and connection.open:
            self._read(connection)
        self._settle(connection)

    def _read(self, connection: _Connection) -> None:
        """Read until the socket is empty or the channel has enough for now; handle what came whole."""
        channel, sock = connection.channel, connection.sock
        for _ in range(_READS_PER_TURN):
            buffer = channel.buffer()
            room = len(buffer)
            try:
                count = sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                channel.rest()
                return
            except ConnectionResetError:
                count = 0  # it has left without reading its answers; what it sent before that counts
            finally:
                del buffer  # the frame reader cannot change the length of what is still lent out
            if count == 0:
                _log.debug("connection from %s ended", connection.peer)
                connection.ended = True
                return
            self._bytes_in += count
            channel.received(count)
            self._serve(connection)
            channel.reserve()
            if count < room or not connection.open or not channel.wants_read:
                return

    def _serve(self, connection: _Connection) -> None:
        """Handle the waiting requests until one is not answered at once or the slice is over."""
        if connection.queued:
            return
        channel = connection.channel
        while self._deadline is None:
            request = channel.take()
            if request is None:
                return
            reply = Reply(self, connection, connection.peer, connection.session)
            connection.reply = self._serving = reply
            try:
                parts = self._handler(request, reply)
                answered = self._serving is None
            finally:
                self._serving = None
            del request  # it may be large, and sending takes its time
            if parts is not None:
                reply.returned(parts)
                connection.reply = None
                channel.answer(parts)
            elif answered:
                self._finish(connection, reply)
            elif reply.work is None or not self._go_on(connection, reply):
                return
            if channel.wants_write and not self._send(connection):
                return
            if channel.waits and self._clock.monotonic() >= self._slice_ends:
                self._queue(connection)
                return

    def _go_on(self, connection: _Connection, reply: Reply) -> bool:
        """Go on with the work for the request in hand until the slice is over; True once it is answered."""
        work = cast("Steps[None]", reply.work)
        job, connection.job = connection.job, None
        wanted: Job | None = None
        self._serving = reply
        try:
            wanted = next(work) if job is None else _resumed(work, job)
            while wanted is None and self._serving and self._clock.monotonic() < self._slice_ends:
                wanted = next(work)
        except StopIteration:
            reply.work = None
        finally:
            answered = self._serving is None
            self._serving = None
        if answered:
            if reply.work is not None:
                raise RuntimeError("work for a request went on after its answer")
            self._finish(connection, reply)
        elif reply.work is None:
            pass  # its answer is left to another thread
        elif wanted is None:
            self._queue(connection)
        else:
            self._have_done(wanted, reply)
        return answered

    def _queue(self, connection: _Connection) -> None:
        """Let other connections go first."""
        connection.queued = connection.channel.paused = True
        self._turns.append(connection)

    def _next_turn(self, connection: _Connection) -> None:
        connection.queued = connection.channel.paused = False
        if connection.open:
            self._guarded(self._take_turn, connection, connection.reply)

    def _take_turn(self, connection: _Connection, in_hand: Reply | None) -> None:
        connection.last_active = self._now
        if (in_hand is None or self._go_on(connection, in_hand)) and (
            not connection.channel.wants_write or self._send(connection)
        ):
            self._serve(connection)
        self._settle(connection)

    def _have_done(self, job: Job, reply: Reply) -> None:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, f"{self._name}-worker")
        self._worker.submit(job).add_done_callback(partial(self._job_done, reply))

    def _job_done(self, reply: Reply, job: Future[Any]) -> None:  # in the worker's thread
        self._done.append((reply, job))
        self._wakeup.wake()

    def _take_back(self, reply: Reply, job: Future[Any]) -> None:
        connection = cast("_Connection", reply.token)
        if connection.open:
            connection.job = job
            self._queue(connection)

    def _late_answer(self, connection: _Connection, reply: Reply) -> None:
        connection.last_active = self._now
        self._finish(connection, reply)
        if self._send(connection):
            self._serve(connection)
        self._settle(connection)

    def _finish(self, connection: _Connection, reply: Reply) -> None:
        """Act on the outcome of the request in hand."""
        if reply.outcome is Outcome.CLOSE:
            raise _CloseRequested
        connection.reply = None
        connection.channel.answer(reply.parts)

    def _send(self, connection: _Connection) -> bool:
        """Send what the socket takes now; True once nothing is left to send."""
        channel = connection.channel
        size = channel.unsent_bytes
        if not channel.send_to(connection.sock):
            return False
        self._bytes_out += size
        return True

    def _settle(self, connection: _Connection) -> None:
        """Before the thread turns elsewhere: send what is held, and tell the selector what to watch."""
        if not connection.open:
            return
        channel = connection.channel
        if channel.holds:
            self._send(connection)
        if connection.ended and not connection.has_turns and not channel.wants_write:
            self._close(connection)
            return
        channel.reserve()
        mask = selectors.EVENT_READ if channel.wants_read and not connection.ended else 0
        if channel.wants_write:
            mask |= selectors.EVENT_WRITE
        if mask == connection.mask:
            return
        if not mask:
            self._selector.unregister(connection.sock)
        elif not connection.mask:
            self._selector.register(connection.sock, mask, connection)
        else:
            self._selector.modify(connection.sock, mask, connection)
        connection.mask = mask

    def _take_over(self, sock: socket.socket, peer: str, session: object) -> None:
        connection = _Connection(sock, peer, session, self._now, self._now)
        connection.channel = Channel(self._max_request_bytes, self._memory, partial(self._admit, connection))
        self._connections.add(connection)
        self._metrics.connections.inc()
        self._settle(connection)

    def _admit(self, connection: _Connection) -> None:
        """There is memory for its request now. Called in any processor's thread."""
        self._admitted.append(connection)
        self._wakeup.wake()

    def _go_on_reading(self, connection: _Connection, _: None) -> None:
        connection.last_active = self._now
        self._settle(connection)

    def _close(self, connection: _Connection, *, last_words: bool = False) -> None:
        """Close the socket, drop what it still had to send, end the request in hand.

        ``last_words``: first send what is held for requests that were carried out, if the socket takes it.
        """
        if not connection.open:
            return
        if last_words:
            try:
                self._send(connection)
            except (OSError, EOFError) as e:
                _log.debug("connection from %s lost: %s", connection.peer, e)
        connection.open = False
        self._connections.discard(connection)
        if connection.mask:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.channel.close()
        reply, connection.reply = connection.reply, None
        if reply is not None:
            _end_work(reply)
            reply.peer_gone()
            reply.drop()
        self.closed_count += 1
        self._metrics.connections.dec()

    def _tick(self) -> None:
        """Close connections that are idle or too slow; hand the sums to the metrics."""
        self._next_tick = self._now + self._tick_seconds
        self._publish()
        for connection in list(self._connections):
            why = self._overdue(connection)
            if why is not None:
                _log.log(logging.DEBUG if why == "idle" else logging.WARNING,
                         "closing the connection from %s: %s", connection.peer, why)  # fmt: skip
                self._close(connection)

    def _overdue(self, connection: _Connection) -> str | None:
        """Why the connection is to be closed; None where it is not.

        A request in hand, or one that waits for memory, may take its time. A client that stops reading its
        answer may not: it keeps a file open. Nor one that stops sending a request while we read: it keeps
        memory.
        """
        channel = connection.channel
        coming_in = channel.coming_in
        if coming_in != connection.coming_in or not channel.wants_read:
            connection.coming_in, connection.coming_in_since = coming_in, self._now
        elif coming_in and self._now - connection.coming_in_since > self._max_receive_seconds:
            return f"its request did not come in whole within {self._max_receive_seconds:g} s"
        if connection.last_active < self._now - self._max_idle_seconds and not (
            channel.in_hand or channel.waits_for_memory
        ):
            return "idle"
        return None

    def _publish(self) -> None:
        self._metrics.bytes_in.inc(self._bytes_in)
        self._metrics.bytes_out.inc(self._bytes_out)
        self._bytes_in = self._bytes_out = 0

    def _drained(self) -> bool:
        """While stopping, close what has nothing in hand; True once the thread may end."""
        if self._deadline is None:
            return False
        for connection in [c for c in self._connections if not c.channel.muted]:
            self._close(connection)
        return not self._connections or self._clock.monotonic() >= self._deadline

    def _shut_down(self) -> None:
        for connection in list(self._connections):
            self._close(connection)
        while self._adopted:
            self._adopted.popleft()[0].close()
            self.closed_count += 1
        while self._answered:
            self._answered.popleft().drop()
        while self._resumed:
            _end_work(self._resumed.popleft())
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
        self._publish()
        self._selector.close()
        self._wakeup.close()


def _resumed(work: Steps[None], job: Future[Any]) -> Job | None:
    """Give the work the result of its job."""
    error = job.exception()
    return work.send(job.result()) if error is None else work.throw(error)


def _end_work(reply: Reply) -> None:
    """The client is gone."""
    work, reply.work = reply.work, None
    if work is not None:
        try:
            work.close()
        except Exception:
            _log.exception("ending a request from %s failed", reply.peer)
