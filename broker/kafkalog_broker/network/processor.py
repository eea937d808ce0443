"""The thread that reads requests, calls the handler, and sends the answers."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.network.channel import Channel, Connection, Entrance, RequestMemory
from kafkalog_broker.network.reply import Outcome, Part, Reply
from kafkalog_broker.network.tls_channel import STAGE_BYTES, HandshakeFailed, ServerTls
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import FrameTooLarge

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

RequestHandler = Callable[[bytearray, Reply], "Sequence[Part] | None"]
"""Gets a request without its size prefix, which it may keep and modify, and its reply.
A non-None result is the answer, which is cheaper than `Reply.send`. Slow work goes to `Reply.work_on`.
"""

_READS_PER_TURN = 8
"""Reads of a connection that keeps filling its buffer, before others get their turn."""

SLICE_SECONDS = 0.002
"""Time for one connection's waiting requests before others get their turn."""

_ADDRESSES_COMPLAINED_OF = 1000
_TLS_SIZES = range(0x16030000, 0x16030400)
"""First bytes of a TLS handshake, read as a size."""

_TICK_SECONDS = 0.5
"""Interval for closing idle connections and updating metrics."""


class Wakeup:
    """A pipe whose reading end is in a selector.

    *Thread-safe: any thread may `wake` and `close`; only the waiting thread may `clear`.* To lose no wake-up,
    queue work before `wake`, and call `clear` before looking at the queue.
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
        return self._read_fd

    def wake(self) -> None:
        """Make the reading end readable. Unnoticed wake-ups count as one."""
        if self._woken:
            return
        with self._lock:  # else it could write to a file that reused the descriptor after `close`
            if self._woken or self._closed:
                return
            self._woken = True
            try:
                os.write(self._write_fd, b"\0")
            except BlockingIOError:
                pass  # a full pipe wakes too

    def clear(self) -> None:
        # Drain before resetting: else a new byte could go with the flag set, and no later wake would write.
        try:
            while len(os.read(self._read_fd, 512)) == 512:
                pass
        except BlockingIOError:
            pass
        self._woken = False

    def close(self) -> None:
        """Close the pipe; later wake-ups do nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)


class _CloseRequested(Exception):
    """A reply asked to close its connection."""


class Processor:
    """Runs one selector loop over its connections and calls the handler in the same thread.

    *Thread-safe: `adopt`, `settled`, `work_on` and `begin_stop` only queue and wake the thread.* Everything
    else belongs to the thread. ``reply_lock`` guards only replies' state; no call is made under it.

    Answers returned by the handler are sent in the same turn, those to requests that came together in one
    call. Slow requests run in the shared ``workers`` (`Reply.work_on`); only their connection waits.
    Connections with many requests take turns of `SLICE_SECONDS`.

    What a client sent before it closed is still handled, as producers without acknowledgements send and
    leave. A request that waits for something else, or for a worker, is then dropped.

    A request must arrive within ``max_receive_seconds`` of its first byte. ``memory`` is shared with other
    processors. An ``entrance``'s limits hold until its sessions are admitted.
    """

    def __init__(
        self,
        number: int,
        handler: RequestHandler,
        metrics: Metrics,
        *,
        max_request_bytes: int,
        max_idle_seconds: float,
        clock: Clock,
        workers: Executor,
        max_receive_seconds: float = float("inf"),
        memory: RequestMemory | None = None,
        entrance: Entrance | None = None,
    ) -> None:
        self.reply_lock = threading.Lock()
        self.closed_count = 0
        """Connections closed since the start; written only by this thread."""
        self._handler = handler
        self._metrics = metrics
        self._max_request_bytes = max_request_bytes
        self._max_idle_seconds = max_idle_seconds
        self._max_receive_seconds = max_receive_seconds
        self._memory = memory if memory is not None else RequestMemory()
        self._unsettled: deque[Connection] = deque()
        self._entrance = entrance
        self._stage = memoryview(bytearray(STAGE_BYTES if entrance and entrance.context else 0))
        self._reading_on: deque[Connection] = deque()
        self._complained: set[str] = set()
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._adopted: deque[tuple[socket.socket, str, object, Callable[[], object] | None]] = deque()
        self._answered: deque[Reply] = deque()
        self._turns: deque[Connection] = deque()
        self._slice_ends = 0.0
        self._workers = workers
        self._serving: Reply | None = None
        self._now = clock.monotonic()
        limits = [max_idle_seconds, max_receive_seconds, entrance.max_seconds if entrance else float("inf")]
        self._tick_seconds = min(_TICK_SECONDS, max(0.01, min(limits) / 4))
        self._next_tick = self._now + self._tick_seconds
        self._bytes_in = 0
        self._bytes_out = 0
        self._thread_id = -1
        self._deadline: float | None = None  # set by begin_stop
        self._wakeup = Wakeup()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._name = f"kafkalog-network-{number}"
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def adopt(
        self,
        sock: socket.socket,
        peer: str,
        session: object = None,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        """Take over a connected, non-blocking socket; its replies carry ``session``."""
        self._adopted.append((sock, peer, session, on_close))
        self._wakeup.wake()

    def settled(self, reply: Reply) -> None:
        """The outcome of ``reply`` is decided. Called once per reply, by any thread."""
        if threading.get_ident() != self._thread_id:
            self._answered.append(reply)
            self._wakeup.wake()
        elif reply is self._serving:
            self._serving = None  # seen by `_serve` when the handler returns
        else:
            self._answered.append(reply)  # checked before the next select

    def work_on(self, reply: Reply) -> None:
        self._workers.submit(self._work, reply)

    def _work(self, reply: Reply) -> None:  # in a worker's thread
        with self.reply_lock:
            work = reply.work
        if work is None:
            return  # the connection was closed
        try:
            work()
        except Exception:
            _log.exception("closing the connection from %s", reply.peer)
            if reply.outcome is Outcome.PENDING:
                reply.close()
        finally:
            with self.reply_lock:
                if reply.work is work:  # else another thread has given it more meanwhile
                    reply.work = None
        if reply.outcome is Outcome.PENDING:  # it waits for something else: not for a client that has left
            self._unsettled.append(reply.token)
            self._wakeup.wake()

    def begin_stop(self, deadline: float) -> None:
        """Start no more requests, finish those in hand until ``deadline`` (monotonic), then close everything.
        The acceptor must be stopped before.
        """
        self._deadline = deadline
        self._wakeup.wake()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        while self._deadline is None or not self._drained():
            try:
                self._turn()
            except Exception:
                # Unexpected. Ending the thread would leave a broker that is up and deaf, so continue,
                # slowly enough not to flood the log.
                _log.exception("thread %s: a round failed", self._thread.name)
                self._clock.sleep(_TICK_SECONDS)
        self._shut_down()

    def _turn(self) -> None:
        events = self._selector.select(0.0 if self._turns or self._reading_on else self._wait_seconds())
        self._now = self._clock.monotonic()
        for key, mask in events:
            connection: Connection | None = key.data
            if connection is None:
                self._wakeup.clear()
            else:
                self._guarded(self._ready, connection, mask)
        while self._answered:
            reply = self._answered.popleft()
            if reply.closed:
                reply.drop()
            else:
                self._guarded(self._late_answer, reply.token, reply)
        for _ in range(len(self._reading_on)):
            self._guarded(self._read_on, self._reading_on.popleft(), None)
        while self._unsettled:
            self._guarded(self._resettle, self._unsettled.popleft(), None)
        while self._adopted:
            self._take_over(*self._adopted.popleft())
        if self._turns:
            self._next_turn(self._turns.popleft())
        if self._now >= self._next_tick:
            self._tick()

    def _wait_seconds(self) -> float:
        if self._deadline is None:
            return self._tick_seconds
        return max(0.0, min(self._tick_seconds, self._deadline - self._now))

    def _guarded(self, work: Callable[[Connection, _T], None], connection: Connection, argument: _T) -> None:
        self._slice_ends = 0.0  # it begins when a second request waits
        try:
            work(connection, argument)
        except _CloseRequested:
            self._close(connection, last_words=True)
        except FrameTooLarge as e:
            if e.size in _TLS_SIZES:
                self._complain(connection, f"{connection.peer} speaks TLS, which this listener does not: "
                               "its security.protocol must be PLAINTEXT or SASL_PLAINTEXT here")  # fmt: skip
            else:
                _log.warning("closing the connection from %s: %s", connection.peer, e)
            self._close(connection, last_words=True)
        except HandshakeFailed as e:
            self._complain(connection, f"no TLS with {connection.peer}: {e}")
            self._close(connection)
        except OSError as e:
            _log.debug("connection from %s lost: %s", connection.peer, e)
            self._close(connection)
        except Exception:
            _log.exception("closing the connection from %s", connection.peer)
            self._close(connection, last_words=True)

    def _ready(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE or connection.channel.outgoing is None:
            connection.last_active = self._now
        if connection.tls is not None and not self._secured(connection, connection.tls):
            self._settle(connection)
            return
        if mask & selectors.EVENT_WRITE and self._send(connection):
            self._serve(connection)
        if mask & selectors.EVENT_READ and connection.open:
            self._read(connection)
        self._settle(connection)

    def _secured(self, connection: Connection, tls: ServerTls) -> bool:
        """Continue the handshake, or send waiting ciphertext; whether the handshake is done."""
        if tls.established:
            tls.flush(connection.sock)
        elif tls.handshake(connection.sock):
            connection.session.secured(tls.tls)
            self._read(connection)  # data that came with the end of the handshake
        return tls.established

    def _read_on(self, connection: Connection, _: None) -> None:
        connection.reading_on = False
        if connection.open:
            self._read(connection)
            self._settle(connection)

    def _read(self, connection: Connection) -> None:
        """Read until the socket is empty or the channel has enough; handle complete requests."""
        channel, sock, tls = connection.channel, connection.sock, connection.tls
        for _ in range(_READS_PER_TURN):
            buffer = channel.buffer()
            room = len(buffer)
            try:
                count = sock.recv_into(buffer) if tls is None else tls.recv_into(sock, buffer)
            except (BlockingIOError, InterruptedError):
                channel.rest()
                return
            except ConnectionResetError:
                count = 0  # closed with unread answers; what it sent before still counts
            finally:
                del buffer  # the frame reader cannot resize a buffer that is exported
            if count == 0:
                _log.debug("connection from %s ended", connection.peer)
                connection.ended = True
                return
            self._bytes_in += count
            channel.received(count)
            self._serve(connection)
            if count < room and (tls is None or not tls.readable):
                return
            if not connection.open or not channel.reads_on():
                return

    def _serve(self, connection: Connection) -> None:
        """Handle waiting requests until one is not answered at once or the slice is over."""
        if connection.queued:
            return
        channel = connection.channel
        while self._deadline is None:
            request = channel.take()
            if request is None:
                return
            if channel.waiting and not self._slice_ends:
                self._slice_ends = self._clock.monotonic() + SLICE_SECONDS
            reply = Reply(self, connection, connection.peer, connection.session)
            connection.reply = self._serving = reply
            try:
                parts = self._handler(request, reply)
                answered = self._serving is None
            finally:
                self._serving = None
            del request  # may be large, and sending takes time
            if parts is not None:
                reply.returned(parts)
                connection.reply = None
                channel.answer(parts)
            elif answered:
                self._finish(connection, reply)
            else:
                return
            if channel.outgoing is not None and not self._send(connection):
                return
            if channel.waiting:
                if self._clock.monotonic() >= self._slice_ends:
                    self._queue(connection)
                    return
            elif channel.failure is None:
                return

    def _queue(self, connection: Connection) -> None:
        connection.queued = connection.channel.paused = True
        self._turns.append(connection)

    def _next_turn(self, connection: Connection) -> None:
        connection.queued = connection.channel.paused = False
        if connection.open:
            self._guarded(self._take_turn, connection, None)

    def _take_turn(self, connection: Connection, _: None) -> None:
        connection.last_active = self._now
        if connection.channel.outgoing is None or self._send(connection):
            self._serve(connection)
        self._settle(connection)

    def _late_answer(self, connection: Connection, reply: Reply) -> None:
        connection.last_active = self._now
        self._finish(connection, reply)
        if self._send(connection):
            self._serve(connection)
        self._settle(connection)

    def _finish(self, connection: Connection, reply: Reply) -> None:
        if reply.outcome is Outcome.CLOSE:
            raise _CloseRequested
        connection.reply = None
        connection.channel.answer(reply.parts)
        if reply.outcome is Outcome.LAST_ANSWER:
            raise _CloseRequested

    def _send(self, connection: Connection) -> bool:
        channel = connection.channel
        size = channel.unsent_bytes
        if not channel.send_to(connection.sock, connection.tls):
            return False
        self._bytes_out += size
        return True

    def _settle(self, connection: Connection) -> None:
        """Send held answers and update the selector, before turning to another connection."""
        if not connection.open:
            return
        channel = connection.channel
        if channel.held:
            self._send(connection)
        if connection.ended and not connection.is_served and channel.outgoing is None:
            self._close(connection)
            return
        if connection.entering and connection.session.admitted:
            connection.entering = False
            channel.admit(self._max_request_bytes, self._memory)
        mask = selectors.EVENT_READ if channel.reads_on() and not connection.ended else 0
        if channel.outgoing is not None:
            mask |= selectors.EVENT_WRITE
        tls = connection.tls
        if tls is not None:
            if tls.unsent:
                mask |= selectors.EVENT_WRITE
            if mask & selectors.EVENT_READ and tls.readable and not connection.reading_on:
                connection.reading_on = True
                self._reading_on.append(connection)
        if mask == connection.mask:
            return
        if not mask:
            self._selector.unregister(connection.sock)
        elif not connection.mask:
            self._selector.register(connection.sock, mask, connection)
        else:
            self._selector.modify(connection.sock, mask, connection)
        connection.mask = mask

    def _take_over(
        self, sock: socket.socket, peer: str, session: object, on_close: Callable[[], object] | None
    ) -> None:
        connection = Connection(sock, peer, session, self._now, self._now, self._now, on_close=on_close)
        entrance, size, memory = self._entrance, self._max_request_bytes, self._memory
        if entrance is not None:
            connection.entering, size, memory = True, entrance.max_request_bytes, entrance.memory
            if entrance.context is not None:
                connection.tls = ServerTls(entrance.context(), self._stage)
        connection.channel = Channel(size, memory, partial(self._admit, connection))
        self._connections.add(connection)
        self._metrics.connections.inc()
        self._settle(connection)

    def _admit(self, connection: Connection) -> None:
        self._unsettled.append(connection)
        self._wakeup.wake()

    def _resettle(self, connection: Connection, _: None) -> None:
        connection.last_active = self._now
        self._settle(connection)

    def _close(self, connection: Connection, *, last_words: bool = False) -> None:
        """Close a connection and its request in hand; ``last_words``: first send held answers if possible."""
        if not connection.open:
            return
        if last_words:
            try:
                self._send(connection)
            except (OSError, EOFError) as e:
                _log.debug("connection from %s lost: %s", connection.peer, e)
        if connection.tls is not None:
            connection.tls.end(connection.sock)
        connection.open = False
        self._connections.discard(connection)
        if connection.mask:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.channel.close()
        reply, connection.reply = connection.reply, None
        if reply is not None:
            reply.peer_gone()
            reply.drop()
        if connection.on_close is not None:
            connection.on_close()
        self.closed_count += 1
        self._metrics.connections.dec()

    def _complain(self, connection: Connection, text: str) -> None:
        """Warn once per address: rejected clients retry."""
        host = connection.peer.rpartition(":")[0]
        level = logging.DEBUG if host in self._complained else logging.WARNING
        if len(self._complained) < _ADDRESSES_COMPLAINED_OF:
            self._complained.add(host)
        _log.log(level, "%s", text)

    def _tick(self) -> None:
        self._next_tick = self._now + self._tick_seconds
        self._publish()
        for connection in list(self._connections):
            why = self._overdue(connection)
            if why is not None:
                _log.log(logging.DEBUG if why == "idle" else logging.WARNING,
                         "closing the connection from %s: %s", connection.peer, why)  # fmt: skip
                self._close(connection)

    def _overdue(self, connection: Connection) -> str | None:
        """Why the connection must be closed, or None. Requests in hand may take their time; a client that
        stops reading or sending may not.
        """
        channel = connection.channel
        entrance = self._entrance if connection.entering else None
        if entrance is not None and self._now - connection.opened > entrance.max_seconds:
            return f"no handshake and login within {entrance.max_seconds:g} s"
        coming_in = channel.coming_in
        if coming_in != connection.coming_in or not channel.reads_on():
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
        if self._deadline is None:
            return False
        for connection in [c for c in self._connections if not c.channel.muted]:
            self._close(connection)
        return not self._connections or self._clock.monotonic() >= self._deadline

    def _shut_down(self) -> None:
        for connection in list(self._connections):
            self._close(connection)
        while self._adopted:
            sock, _, _, on_close = self._adopted.popleft()
            sock.close()
            if on_close is not None:
                on_close()
            self.closed_count += 1
        while self._answered:
            self._answered.popleft().drop()
        self._publish()
        self._selector.close()
        self._wakeup.close()
