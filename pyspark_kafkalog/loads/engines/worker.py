"""Processes that run a load's tasks: ``python -m pyspark_kafkalog.loads.engines.worker PIPES OFFSETS``
imports what they need, if each is to read so many offsets, forks a process for each pair of pipes,
``READ:WRITE,...``, and prints a line, the process's number and exit code, when one has ended.

A process reads a pickled task, range numbers, and `END_OF_TASK`, then the next task. It ends as soon as its
pipe does, so it never outlives its driver.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import IO, NoReturn

import msgspec

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.engines.engine import RangeTask

END_OF_TASK = b""

_PRELOADED = (
    "pyarrow.parquet",
    "pyspark_kafkalog.datasource.reading.kafka",
    "pyspark_kafkalog.loads.writers.file_tasks",
)

_LENGTH = struct.Struct(">Q")
_TOLD_EVERY_SECONDS = 0.2


class Answer(msgspec.Struct, frozen=True):
    """What a task said, or its ``error`` with the text of its trace."""

    lines: list[str] = msgspec.field(default_factory=list)
    error: Exception | None = None
    trace: str = ""


def write_message(to: IO[bytes], message: bytes) -> None:
    to.write(_LENGTH.pack(len(message)) + message)
    to.flush()


def read_message(source: IO[bytes]) -> bytes | None:
    """The next message; None if the other side has ended."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = source.read(length)
    return message if len(message) == length else None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends these processes
    pipes = [tuple(map(int, pair.split(":"))) for pair in sys.argv[1].split(",")]
    _preload(int(sys.argv[2]))
    workers: dict[int, int] = {}

    def end(*_: object) -> None:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, end)
    for index, (reads, writes) in enumerate(pipes):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            _close(fd for pair in pipes for fd in pair if fd not in (reads, writes))
            _serve(reads, writes)
        workers[pid] = index
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    _close(fd for pair in pipes for fd in pair)
    while workers:
        pid, status = os.wait()
        with suppress(BrokenPipeError):  # the driver was killed
            os.write(1, f"{workers.pop(pid)} {os.waitstatus_to_exitcode(status)}\n".encode())


def _preload(offsets: int) -> None:
    from pyspark_kafkalog.columnar.decoder import SINCE_08, WARM_UP_RECORDS

    for name in _PRELOADED:
        import_module(name)
    if offsets >= WARM_UP_RECORDS:
        SINCE_08.engines.warm_up()
    gc.freeze()  # what the collector does not visit stays in shared memory


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _serve(reads: int, writes: int) -> NoReturn:
    os.dup2(2, 1)  # what a user's function prints is not for the driver
    answers = os.fdopen(writes, "wb")
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(os.fdopen(reads, "rb"), messages), daemon=True).start()
    while True:
        task: RangeTask = pickle.loads(messages.get())
        while (index := messages.get()) != END_OF_TASK:
            write_message(answers, _pickled(_answer(task, int(index), answers)))


def _receive(source: IO[bytes], messages: queue.SimpleQueue[bytes]) -> None:
    while (message := read_message(source)) is not None:
        messages.put(message)
    os._exit(0)


def _answer(task: RangeTask, index: int, answers: IO[bytes]) -> Answer:
    told = time.monotonic()

    def tell(offsets: int) -> None:
        nonlocal told
        if (now := time.monotonic()) - told >= _TOLD_EVERY_SECONDS:
            told = now
            write_message(answers, pickle.dumps(offsets))

    try:
        said: Iterable[str] = task(index, tell)
        return Answer(list(said))
    except Exception as e:
        return Answer(error=e, trace=traceback.format_exc())


def _pickled(answer: Answer) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(answer)
        pickle.loads(pickled)
    except Exception:
        pickled = cloudpickle.dumps(Answer(error=LoadError(answer.trace.strip())))
    return pickled


if __name__ == "__main__":
    # Not this copy, of which the driver knows no classes.
    import_module("pyspark_kafkalog.loads.engines.worker").main()
