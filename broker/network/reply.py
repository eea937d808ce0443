"""The one answer that a request is owed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from threading import Lock
from typing import Protocol

from broker.network.transmission import Part, close_regions
from pyspark_kafkalog.steps import Steps

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """What the handler decided."""

    PENDING = 0
    """Nothing yet."""
    ANSWER = 1
    """The parts go out."""
    NO_ANSWER = 2
    """The request has none (a produce request with acks 0); the next one is due."""
    CLOSE = 3
    """The connection ends."""


class ReplyOwner(Protocol):
    """The processor, as its replies see it."""

    @property
    def reply_lock(self) -> Lock:
        """Guards the state of all replies of this owner."""
        ...

    def has_work(self, reply: Reply) -> None:
        """There is work left for ``reply``; called by the thread that gave it."""
        ...

    def settled(self, reply: Reply) -> None:
        """The outcome of ``reply`` stands; called once, by the thread that gave it."""
        ...


class Reply:
    """Takes the answer to one request, now or later, from any thread.

    *Thread-safe: its state is guarded by the owning processor's ``reply_lock``.* Exactly one of `send`,
    `no_answer` and `close` is called, once; a second call raises RuntimeError. When the peer vanishes
    first, the answer is dropped and its regions are closed.
    """

    __slots__ = ("_closed", "_on_close", "_owner", "outcome", "parts", "peer", "token", "work")

    def __init__(self, owner: ReplyOwner, token: object, peer: str) -> None:
        self._owner = owner
        self._closed = False
        self._on_close: Callable[[], None] | None = None
        self.token = token
        """The owner's name for the connection; nobody else's business."""
        self.peer = peer
        """``host:port`` of the client."""
        self.outcome = Outcome.PENDING
        self.parts: Sequence[Part] | None = None
        """The answer; it owns its regions until the channel does."""
        self.work: Steps[None] | None = None
        """What is left to be done for the request, if that is `go_on_with`'s."""

    @property
    def closed(self) -> bool:
        """Whether the connection is gone, so that nobody waits for the answer any more."""
        return self._closed

    def send(self, parts: Sequence[Part]) -> None:
        """Answer with ``parts``, whose size prefix is the first of them. Takes over the regions."""
        try:
            self._settle(Outcome.ANSWER, parts)
        except RuntimeError:
            close_regions(parts)
            raise

    def returned(self, parts: Sequence[Part]) -> None:
        """The handler gave ``parts`` back as the answer: called by the owner only, in its thread.

        Nobody else has an unsettled reply whose handler has returned an answer, so it takes no lock.

        Raises:
            RuntimeError: the handler had settled it already.
        """
        if self.outcome is not Outcome.PENDING:
            close_regions(parts)
            raise RuntimeError(f"the request from {self.peer} is answered already")
        self.outcome = Outcome.ANSWER
        self.parts = parts

    def go_on_with(self, work: Steps[None]) -> None:
        """Have the owner do the rest of the request, in its thread and in turns with other connections.

        Called by the handler, or later by any thread that would have settled the reply. ``work`` settles it
        as its last act, or leaves that to another thread; what it raises closes the connection. It is closed
        if the connection ends first.
        """
        self.work = work
        self._owner.has_work(self)

    def no_answer(self) -> None:
        """The request needs no answer."""
        self._settle(Outcome.NO_ANSWER, None)

    def close(self) -> None:
        """Close the connection instead of answering."""
        self._settle(Outcome.CLOSE, None)

    def on_close(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` if the connection ends before the answer is given.

        Called once, in the processor's thread, or at once in the caller's if the connection is gone
        already. It must not block. A later call replaces an earlier one.
        """
        with self._owner.reply_lock:
            if not self._closed:
                if self.outcome is Outcome.PENDING:
                    self._on_close = fn
                return
        fn()

    def peer_gone(self) -> None:
        """The connection is closed: called by the owner only."""
        with self._owner.reply_lock:
            self._closed = True
            fn, self._on_close = self._on_close, None
        if fn is not None:
            try:
                fn()
            except Exception:
                _log.exception("on_close of a request from %s failed", self.peer)

    def drop(self) -> None:
        """Give up the files of an answer that nobody can receive any more: called by the owner only."""
        if self.parts is not None:
            close_regions(self.parts)

    def _settle(self, outcome: Outcome, parts: Sequence[Part] | None) -> None:
        with self._owner.reply_lock:
            if self.outcome is not Outcome.PENDING:
                raise RuntimeError(f"the request from {self.peer} is answered already")
            self.outcome = outcome
            self._on_close = None
            closed = self._closed
            if not closed:
                self.parts = parts
        if not closed:
            self._owner.settled(self)
        elif parts is not None:
            close_regions(parts)
