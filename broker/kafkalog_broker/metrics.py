"""The broker's metrics, in a Prometheus registry that is passed in."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """*Thread-safe: each counter guards itself.* Labelled ones are cached, as looking one up costs more."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.bytes_in = self._counter("bytes_in", "Bytes received from clients")
        self.bytes_out = self._counter("bytes_out", "Bytes sent to clients")
        self.connections = self._gauge("connections", "Open connections")
        self._queued_bytes = self._gauge(
            "queued_request_bytes",
            "Memory reserved for requests of more than 4 KiB that come in or are in hand",
        )
        self._queued_waiting = self._gauge("queued_requests_waiting", "Requests that wait for such memory")
        self.appended_messages = self._counter("appended_messages", "Messages appended to logs")
        self.appended_bytes = self._counter("appended_bytes", "Bytes appended to logs")
        self.converted_messages = self._counter(
            "converted_messages", "Messages made into another format, for their reader or for their topic"
        )
        self.converted_bytes = self._counter("converted_bytes", "Bytes of what they were made into")
        self._fetch_sessions = self._gauge("fetch_sessions", "Incremental fetch sessions")
        self._session_partitions = self._gauge("fetch_session_partitions", "Partitions in these sessions")
        self.fetch_session_evictions = self._counter(
            "fetch_session_evictions", "Sessions evicted for another one"
        )
        self.log_flush_seconds = Histogram(
            "kafkalog_broker_log_flush_seconds", "Time to force one log to disk", registry=self.registry
        )
        self._requests = self._counter("requests", "Requests received", "api")
        self._request_errors = self._counter(
            "request_errors", "Errors answered, a partition at a time", "api", "code"
        )
        self._authorization_denials = self._counter(
            "authorization_denials", "Operations that clients were not allowed", "resource", "operation"
        )
        self._logins = self._counter("logins", "Logins at listeners", "listener", "mechanism", "outcome")
        self._by_api: dict[str, Counter] = {}
        self._by_error: dict[tuple[str, str], Counter] = {}

    def watch_requests(self, reserved_bytes: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._queued_bytes.set_function(reserved_bytes)
        self._queued_waiting.set_function(waiting)

    def watch_fetch_sessions(self, sessions: Callable[[], int], partitions: Callable[[], int]) -> None:
        self._fetch_sessions.set_function(sessions)
        self._session_partitions.set_function(partitions)

    def requests(self, api: str) -> Counter:
        child = self._by_api.get(api)
        if child is None:
            # Two threads may both get here: the library returns the same counter.
            child = self._by_api[api] = self._requests.labels(api)
        return child

    def request_errors(self, api: str, code: str) -> Counter:
        child = self._by_error.get((api, code))
        if child is None:
            child = self._by_error[api, code] = self._request_errors.labels(api, code)
        return child

    def authorization_denials(self, resource: str, operation: str) -> Counter:
        return self._authorization_denials.labels(resource, operation)

    def logins(self, listener: str, mechanism: str, outcome: str) -> Counter:
        return self._logins.labels(listener, mechanism, outcome)

    def _gauge(self, name: str, doc: str) -> Gauge:
        return Gauge(f"kafkalog_broker_{name}", doc, registry=self.registry)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"kafkalog_broker_{name}", doc, labels, registry=self.registry)
