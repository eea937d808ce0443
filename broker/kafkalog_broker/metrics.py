"""The broker's metrics. Prometheus' library is imported when somebody asks for them: a start does not wait
for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_PREFIX = "kafkalog_broker_"
_FLUSH_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of the buckets in which times of flushes are counted."""


class Counter:
    """*Thread-safe.* ``value`` rises, or is a gauge."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = Lock()
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        with self._lock:
            self.value += amount

    def dec(self) -> None:
        self.inc(-1)


class Histogram:
    """*Thread-safe.* How many times were at most each of ``bounds``, in seconds, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._lock = Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Bounds as Prometheus names them, with the number of times up to each."""
        with self._lock:
            counts = list(self._counts)
        names = [*map(str, self._bounds), "+Inf"]
        return [(name, sum(counts[: at + 1])) for at, name in enumerate(names)]


class _Family(msgspec.Struct, frozen=True):
    """Counters of one name, by the values of their labels."""

    name: str
    doc: str
    labels: tuple[str, ...]
    counters: dict[tuple[str, ...], Counter]

    def of(self, *labels: str) -> Counter:
        counter = self.counters.get(labels)
        # Two threads may both get here: ``setdefault`` gives them the same one.
        return counter if counter is not None else self.counters.setdefault(labels, Counter())


class Metrics:
    """*Thread-safe: each counter guards itself.*"""

    def __init__(self) -> None:
        self._families: list[_Family] = []
        self._gauges: list[tuple[str, str, Callable[[], int]]] = []
        self.bytes_in = self._counter("bytes_in", "Bytes received from clients")
        self.bytes_out = self._counter("bytes_out", "Bytes sent to clients")
        self.appended_messages = self._counter("appended_messages", "Messages appended to logs")
        self.appended_bytes = self._counter("appended_bytes", "Bytes appended to logs")
        self.converted_messages = self._counter(
            "converted_messages", "Messages made into another format, for their reader or for their topic"
        )
        self.converted_bytes = self._counter("converted_bytes", "Bytes of what they were made into")
        self.fetch_session_evictions = self._counter(
            "fetch_session_evictions", "Sessions evicted for another one"
        )
        self.requests = self._family("requests", "Requests received", "api").of
        self.request_errors = self._family(
            "request_errors", "Errors answered, a partition at a time", "api", "code"
        ).of
        self.authorization_denials = self._family(
            "authorization_denials", "Operations that clients were not allowed", "resource", "operation"
        ).of
        self.logins = self._family("logins", "Logins at listeners", "listener", "mechanism", "outcome").of
        self.connections = Counter()
        self._watch("connections", "Open connections", lambda: self.connections.value)
        self.log_flush_seconds = Histogram(_FLUSH_SECONDS)

    def watch_requests(self, reserved_bytes: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._watch(
            "queued_request_bytes",
            "Memory reserved for requests of more than 4 KiB that come in or are in hand",
            reserved_bytes,
        )
        self._watch("queued_requests_waiting", "Requests that wait for such memory", waiting)

    def watch_fetch_sessions(self, sessions: Callable[[], int], partitions: Callable[[], int]) -> None:
        self._watch("fetch_sessions", "Incremental fetch sessions", sessions)
        self._watch("fetch_session_partitions", "Partitions in these sessions", partitions)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """These metrics for Prometheus, to which others can be added."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Their values now, as Prometheus' library takes them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for family in self._families:
            counters = CounterMetricFamily(_PREFIX + family.name, family.doc, labels=family.labels)
            for labels, counter in list(family.counters.items()):
                counters.add_metric(labels, counter.value)
            yield counters
        for name, doc, value in self._gauges:
            yield GaugeMetricFamily(_PREFIX + name, doc, value())
        flushes = self.log_flush_seconds
        yield HistogramMetricFamily(
            f"{_PREFIX}log_flush_seconds", "Time to force one log to disk", flushes.buckets(), flushes.sum
        )

    def _watch(self, name: str, doc: str, value: Callable[[], int]) -> None:
        self._gauges.append((name, doc, value))

    def _counter(self, name: str, doc: str) -> Counter:
        return self._family(name, doc).of()

    def _family(self, name: str, doc: str, *labels: str) -> _Family:
        self._families.append(_Family(name, doc, labels, {}))
        return self._families[-1]
