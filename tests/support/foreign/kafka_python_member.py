"""A consumer of kafka-python that is polled by a thread of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

_SECONDS = 90.0


class KafkaPythonMember:
    """Long polls follow one another without a gap, as in an application: kafka-python 3.0 never takes up
    the partitions of a join whose last answer came between two polls."""

    def __init__(self, *topics: str, **config: Any) -> None:
        from kafka import KafkaConsumer

        self._consumer: Any = KafkaConsumer(*topics, **config)
        self._thread = ThreadPoolExecutor(1)
        self._polled = self._thread.submit(self._poll)

    def _poll(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self._consumer.poll(timeout_ms=1000)
        return found

    def poll(self) -> list[bytes]:
        """Values that were read since the last call; waits up to 50 ms for them."""
        if not wait([self._polled], 0.05).done:
            return []
        found, self._polled = self._polled.result(), self._thread.submit(self._poll)
        return [record.value for records in found.values() for record in records]

    def held(self) -> list[int]:
        return sorted(tp.partition for tp in self._consumer.assignment())

    def commit(self) -> None:
        self._thread.submit(self._consumer.commit).result(_SECONDS)

    def close(self) -> None:
        self._thread.submit(self._consumer.close).result(_SECONDS)
        self._thread.shutdown()
