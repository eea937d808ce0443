"""A consumer of kafka-python that is polled by a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_SECONDS = 90.0


class KafkaPythonMember:
    """Long polls follow one another without a gap, as in an application: kafka-python 3.0 never takes up
    the partitions of a join whose last answer came between two polls."""

    def __init__(self, *topics: str, **config: Any) -> None:
        from kafka import KafkaConsumer

        self._consumer: Any = KafkaConsumer(*topics, **config)
        self._wishes: queue.SimpleQueue[tuple[Callable[[], object], Future[None]]] = queue.SimpleQueue()
        self._values: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            try:
                while not self._wishes.empty():
                    call, done = self._wishes.get()
                    try:
                        call()
                    except Exception as e:
                        done.set_exception(e)
                    else:
                        done.set_result(None)
                if not self._closing:
                    for records in self._consumer.poll(timeout_ms=1000).values():
                        for record in records:
                            self._values.put(record.value)
            except Exception as e:  # for whoever asks for values
                self._values.put(e)

    def _between_polls(self, call: Callable[[], object]) -> None:
        done: Future[None] = Future()
        self._wishes.put((call, done))
        done.result(_SECONDS)

    def poll(self) -> list[bytes]:
        """Values that were read since the last call; waits up to 50 ms for them."""
        found: list[bytes] = []
        try:
            one = self._values.get(timeout=0.05)
            while True:
                if isinstance(one, Exception):
                    raise one
                found.append(one)
                one = self._values.get_nowait()
        except queue.Empty:
            return found

    def held(self) -> list[int]:
        return sorted(tp.partition for tp in self._consumer.assignment())

    def commit(self) -> None:
        self._between_polls(self._consumer.commit)

    def close(self) -> None:
        def end() -> None:
            self._closing = True
            self._consumer.close()

        self._between_polls(end)
        self._thread.join(_SECONDS)
