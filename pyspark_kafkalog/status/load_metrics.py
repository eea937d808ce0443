"""What operators watch of one load, as Prometheus metrics: in a file for node_exporter, or served."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock, parse_iso_time
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

log = logging.getLogger(__name__)

_GAUGES = {
    "number": "Newest commit of a load",
    "lag": "Offsets that the newest load left, of those that its plan found",
    "committed_timestamp_seconds": "When the newest commit was made",
    "success_timestamp_seconds": "When a load last ended well, with new records or none",
    "failed": "1 if the last load failed, 0 if it ended well",
}
_COUNTERS = {
    "records": "Records loaded",
    "bytes": "Bytes of records loaded",
    "runs": "Loads that ended, well or not",
    "failures": "Loads that failed",
    "compaction_failures": "Compactions of load --compact-every that failed",
    "seconds": "Time that loads which ended well took",
}


class LoadMetrics:
    """*Thread-safe.* Metrics of the loads of one name. What is not known is left out.

    ``file`` is replaced after each load, and the counters go on from what it holds. Raises `InvalidConfig` if
    its directory does not exist.
    """

    def __init__(self, name: str, file: Path | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        if file is not None and not file.parent.is_dir():
            raise InvalidConfig(f"--metrics-file={file}: there is no directory {file.parent}")
        self._name, self._file, self._clock = name, file, clock
        self._registry = registry = CollectorRegistry()
        self._gauges = {
            metric: Gauge(f"kafkalog_load_{metric}", text, ["load"], registry=registry)
            for metric, text in _GAUGES.items()
        }
        self._counters = {
            metric: Counter(f"kafkalog_load_{metric}", text, ["load"], registry=registry).labels(name)
            for metric, text in _COUNTERS.items()
        }
        if file is not None and file.exists():
            self._go_on_from(file)

    def is_at(self, number: int, created: str) -> None:
        """The newest commit, as the ledger has it."""
        self._set("number", number)
        self._set("committed_timestamp_seconds", parse_iso_time(created).timestamp())

    def ended(self, seconds: float, *, records: int, size_bytes: int, lag: int) -> None:
        """A load ended well; 0 records if nothing was new, and unknown counts are below 0."""
        self._counters["records"].inc(max(0, records))
        self._counters["bytes"].inc(max(0, size_bytes))
        self._counters["seconds"].inc(seconds)
        self._counters["runs"].inc()
        self._set("lag", lag)
        self._set("success_timestamp_seconds", self._clock.time_ms() / 1000)
        self._set("failed", 0)
        self._write()

    def failed(self) -> None:
        self._counters["runs"].inc()
        self._counters["failures"].inc()
        self._set("failed", 1)
        self._write()

    def compaction_failed(self) -> None:
        self._counters["compaction_failures"].inc()
        self._write()

    def serve(self, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
        """Serve them at ``/metrics`` until the server is shut down. Raises `OSError`."""
        return start_http_server(port, host, self._registry)

    def _set(self, metric: str, value: float) -> None:
        self._gauges[metric].labels(self._name).set(value)

    def _go_on_from(self, file: Path) -> None:
        """Each load of cron is a process of its own."""
        try:
            families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            log.warning("%s is not read, and its counters begin at 0: %s", file, e)
            return
        for sample in (sample for family in families for sample in family.samples):
            metric = sample.name.removeprefix("kafkalog_load_")
            if sample.labels != {"load": self._name}:
                continue
            if metric in self._gauges:
                self._set(metric, sample.value)
            elif metric.removesuffix("_total") in self._counters:
                self._counters[metric.removesuffix("_total")].inc(sample.value)

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            write_to_textfile(str(self._file), self._registry)
        except OSError as e:  # a load does not fail of it
            log.warning("the metrics of load %s were not written: %s", self._name, e)
