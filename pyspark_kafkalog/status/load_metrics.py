"""What operators watch of one load, as Prometheus metrics: in a file for node_exporter, or served."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, start_http_server, write_to_textfile

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock, parse_iso_time
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer


class LoadMetrics:
    """*Thread-safe.* Metrics of the loads of one name since this object was made.

    ``file`` is replaced after each load. Raises `InvalidConfig` if its directory does not exist.
    """

    def __init__(self, name: str, file: Path | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        if file is not None and not file.parent.is_dir():
            raise InvalidConfig(f"--metrics-file={file}: there is no directory {file.parent}")
        self._file = file
        self._clock = clock
        self._registry = registry = CollectorRegistry()

        def gauge(metric: str, text: str) -> Gauge:
            return Gauge(f"kafkalog_load_{metric}", text, ["load"], registry=registry).labels(name)

        def counter(metric: str, text: str) -> Counter:
            return Counter(f"kafkalog_load_{metric}", text, ["load"], registry=registry).labels(name)

        self._number = gauge("number", "Newest commit of a load")
        self._lag = gauge("lag", "Offsets that a load has still to read")
        self._committed = gauge("committed_timestamp_seconds", "When the newest commit was made")
        self._succeeded = gauge(
            "success_timestamp_seconds", "When a load last ended well, with new records or none"
        )
        self._failed = gauge("failed", "1 if the last load failed, 0 if it ended well")
        self._records = counter("records", "Records loaded")
        self._bytes = counter("bytes", "Bytes of records loaded")
        self._failures = counter("failures", "Loads that failed")
        self._seconds = Summary(
            "kafkalog_load_seconds", "Time that loads took", ["load"], registry=registry
        ).labels(name)

    def is_at(self, number: int, created: str) -> None:
        """The newest commit, as the ledger has it."""
        self._number.set(number)
        self._committed.set(parse_iso_time(created).timestamp())

    def ended(self, seconds: float, *, records: int, size_bytes: int, lag: int) -> None:
        """A load ended well; 0 records if nothing was new, and unknown counts are below 0."""
        self._records.inc(max(0, records))
        self._bytes.inc(max(0, size_bytes))
        self._lag.set(lag)
        self._succeeded.set(self._clock.time_ms() / 1000)
        self._failed.set(0)
        self._seconds.observe(seconds)
        self._write()

    def failed(self) -> None:
        self._failures.inc()
        self._failed.set(1)
        self._write()

    def serve(self, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
        """Serve them at ``/metrics`` until the server is shut down. Raises `OSError`."""
        return start_http_server(port, host, self._registry)

    def _write(self) -> None:
        if self._file is not None:
            write_to_textfile(str(self._file), self._registry)
