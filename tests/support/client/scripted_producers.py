"""Producers that meet a scripted broker: quick to repeat, and closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.producer.producer import Producer

Make = Callable[..., Producer]


@contextmanager
def producers(address: str, **own: object) -> Iterator[Make]:
    """``make(linger_ms=600_000)``: a producer with these properties, with ``own``, and else with limits that
    no machine is slow enough to meet; ``clock`` is what it goes by.

    ``_`` stands for ``.`` in their names.
    """
    made: list[Producer] = []
    usual = {
        "bootstrap_servers": address,
        "linger_ms": 0,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "request_timeout_ms": 600_000,
        "delivery_timeout_ms": 3_600_000,
        "max_block_ms": 600_000,
    }

    def make(clock: Clock = SYSTEM_CLOCK, **changes: Any) -> Producer:
        given = {**usual, **own, **changes}
        properties = {name.replace("_", "."): value for name, value in given.items()}
        made.append(Producer(properties, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close(90)
