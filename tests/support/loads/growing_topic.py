"""A topic that grows while it is loaded, and what everyone who reads it must find in it.

One idempotent producer numbers the records of each partition from 0 and they get the same offsets, so that a
record's value is known by its place.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kafkalog.client.admin import NewTopic, create_partitions, create_topics
from pyspark_kafkalog.errors import KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.producer.producer import Producer
from tests.support.until import until

HOURS = 3
"""Over how many hours, the last one now, the times of the records are spread."""

_PREFILL = 400
_GROWTH = 600
_FLUSH_SECONDS = 60.0
_TICK_SECONDS = 0.02


def value_at(partition: int, offset: int) -> bytes:
    """The value of the record at this place."""
    return b"%d:%d:" % (partition, offset) + b"v" * (offset * 7 % 61)


def key_at(partition: int, offset: int) -> bytes | None:
    """Its key; every third record has none."""
    return b"key %d" % offset if offset % 3 else None


class GrowingTopic:
    """*It grows in a thread of its own; the rest belongs to the test.* Use `growing`.

    ``sent`` and ``acknowledged`` count the records of each partition.
    """

    def __init__(self, servers: str, name: str, partitions: int, rng: random.Random) -> None:
        self.name = name
        self.sent = [0] * partitions
        self.acknowledged = [0] * partitions
        self.wrong: list[str] = []
        self._limits = [_PREFILL + _GROWTH] * partitions
        self._servers = servers
        self._rng = rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._grow, name=f"producer of {name}", daemon=True)
        create_topics(servers, [NewTopic(name, partitions)])
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 5, "metadata.max.age.ms": 200, "batch.size": 2000}
        )
        for partition in range(partitions):
            self._send(partition, _PREFILL)
        self._producer.flush(_FLUSH_SECONDS)
        self._thread.start()

    def add_partition(self) -> int:
        """Widen the topic by one; returns the new partition, which soon gets records too."""
        create_partitions(self._servers, {self.name: len(self.sent) + 1})
        self.acknowledged.append(0)
        self._limits = [*self._limits, _GROWTH]
        self.sent.append(0)
        return len(self.sent) - 1

    def let_grow(self) -> None:
        """Let each partition get some hundred records more, and wait for the first one: a topic that grows
        with the time that loads take makes them take the longer, the slower the machine is.
        """
        self._limits = [count + _GROWTH for count in self.sent]
        before = sum(self.acknowledged)
        until(lambda: sum(self.acknowledged) > before or self._stop.is_set())

    def finish(self) -> None:
        """Grow no longer, and wait until all that was sent is acknowledged."""
        self._stop.set()
        self._thread.join(_FLUSH_SECONDS)
        self._producer.flush(_FLUSH_SECONDS)
        assert self.wrong == []
        assert self.acknowledged == self.sent

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        self._thread.join(_FLUSH_SECONDS)
        self._producer.close(1.0)

    def _grow(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            for partition in range(len(self.sent)):
                try:
                    self._send(partition, min(self._rng.randrange(8), self._left(partition)))
                except UnknownTopicOrPartition:
                    continue  # it was added a moment ago
                except KafkaError as e:
                    self.wrong.append(f"partition {partition}: {e}")
                    return

    def _left(self, partition: int) -> int:
        return max(0, self._limits[partition] - self.sent[partition])

    def _send(self, partition: int, count: int) -> None:
        for _ in range(count):
            offset = self.sent[partition]

            def settled(where: object, error: object, offset: int = offset) -> None:
                self._settled(partition, offset, where, error)

            value, key = value_at(partition, offset), key_at(partition, offset)
            made = int(time.time() - offset % HOURS * 3600) * 1000
            self._producer.send(
                self.name, value, key, partition=partition, timestamp_ms=made, on_delivery=settled
            )
            self.sent[partition] = offset + 1

    def _settled(self, partition: int, offset: int, where: object, error: object) -> None:
        """On the producer's callback thread."""
        got = getattr(where, "offset", None)
        # -1: a repeated batch, so old that the broker only knows that it has it.
        if error is not None or got not in (offset, -1):
            self.wrong.append(f"partition {partition}, record {offset}: got offset {got}, {error}")
        self.acknowledged[partition] += 1


@contextmanager
def growing(servers: str, name: str, partitions: int, rng: random.Random) -> Iterator[GrowingTopic]:
    """A topic with a few hundred records in each partition, which grows as far as it may until the context
    ends.
    """
    topic = GrowingTopic(servers, name, partitions, rng)
    try:
        yield topic
    finally:
        topic.close()
