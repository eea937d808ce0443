"""A process that runs a load's tasks: ``python -m pyspark_kafkalog.loads.engines.worker``. It reads a
pickled task and then range numbers from its standard input, and ends as soon as that ends, so it never
outlives its driver.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.engines.engine import RangeTask

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task said, or its ``error`` with the text of its trace."""

    lines: list[str] = field(default_factory=list)
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's function prints must not get between the answers
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    task: RangeTask = pickle.loads(messages.get())
    while True:
        write_message(answers, _pickled(_answer(task, int(messages.get()))))


def _receive(source: IO[bytes], messages: queue.SimpleQueue[bytes]) -> None:
    while (message := read_message(source)) is not None:
        messages.put(message)
    os._exit(0)


def _answer(task: RangeTask, index: int) -> Answer:
    try:
        said: Iterable[str] = task(index)
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
    main()
