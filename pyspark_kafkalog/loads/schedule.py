"""A load that is repeated: every so many seconds, through failures that may pass, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import (
    DamagedRecord,
    ForeignCluster,
    InvalidConfig,
    KafkaError,
    NewerFormat,
    OffsetsAgedOut,
    TooManyDead,
    TopicRecreated,
    UnsafeStore,
)

log = logging.getLogger(__name__)

_LASTING = (
    InvalidConfig, UnsafeStore, DamagedRecord, ForeignCluster, NewerFormat, OffsetsAgedOut, TopicRecreated,
    TooManyDead,
)  # fmt: skip
"""Somebody must decide something first."""


def repeat(
    run: Callable[[], None],
    every_s: float,
    ended: threading.Event,
    tell: Callable[[str], None],
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Call ``run`` every ``every_s`` seconds, counted from begin to begin, until ``ended``; at once if the
    last call took longer. A `KafkaError` that may pass, LoadBusy for example, is told, and the next call
    is as planned; others are raised.
    """
    while not ended.is_set():
        began = clock.monotonic()
        try:
            run()
        except _LASTING:
            raise
        except KafkaError as e:
            tell(f"{type(e).__name__}: {e}; trying again in {every_s:g} s")
        ended.wait(max(0.0, began + every_s - clock.monotonic()))


class GraceOver(BaseException):
    """The load that ran when the signal came takes too long."""


@contextmanager
def ended_by_signal(grace_s: float) -> Iterator[threading.Event]:
    """SIGTERM sets the event; what still runs ``grace_s`` seconds later is interrupted, which ends the
    context without an error. A second SIGTERM interrupts at once. Only for the main thread.
    """
    ended = threading.Event()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise GraceOver

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()
        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))

    before = signal.signal(signal.SIGTERM, end), signal.getsignal(signal.SIGALRM)
    try:
        yield ended
    except GraceOver:
        log.warning(
            "the load took longer than the grace of %g s and was interrupted; its plan stays", grace_s
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
