"""Serves the page, its JSON, Prometheus metrics and a health check over HTTP, without a login."""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import json
import logging
import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.status.page_data import partitions_data, status_data
from pyspark_kafkalog.status.snapshot import History, Rates, Snapshot, rates_between

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0  # seconds between two snapshots of the history
MOST_REQUESTS = 16  # requests handled at once; more get 503
_REQUEST_SECONDS = 10.0  # time limit of a whole request, including its response
_LOOK_SECONDS = 0.2
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: allows the page's own style and script, by digest."""

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"


def parse_listener(text: str, name: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``. Raises `InvalidConfig` with the property ``name``."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidConfig(
            f"{name}={text} is not allowed; allowed: host:port, such as 127.0.0.1:9308; port 0 is any free "
            "one"
        )
    return host, int(port)


class StatusServer:
    """*Thread-safe.* Serves on one address, and takes a snapshot every `INTERVAL_SECONDS`.

    ``/`` is the page, ``/status.json?topics=TEXT&groups=TEXT`` the newest snapshot and the history,
    ``/partitions.json?topic=T`` the partitions of a topic, ``/metrics`` the metrics of registry and snapshot,
    ``/health`` 200, or 503 with the reason. Owns its threads and its socket.
    """

    def __init__(
        self,
        address: tuple[str, int],
        take: Callable[[], Snapshot],
        *,
        health: Callable[[], str | None],
        registry: CollectorRegistry | None = None,
        title: str = "kafkalog",
    ) -> None:
        """``health`` returns a problem, or None. Raises `ConnectionLost` if the address is in use."""
        self._take, self._health, self._title = take, health, title
        self._registry = registry if registry is not None else CollectorRegistry()
        self._registry.register(SnapshotCollector(lambda: self._newest))
        self._page, self.policy = _page(title)
        self._lock = threading.Lock()  # guards the four below
        self._newest: Snapshot | None = None
        self._rates = Rates()
        self._history = History()
        self._problem: str | None = None
        self._ended = threading.Event()
        try:
            self._server = _Server(address, self)
        except OSError as e:
            raise ConnectionLost(f"cannot listen on {address[0]}:{address[1]}: {e.strerror or e}") from e
        self.is_loopback = self._server.is_loopback
        serve = partial(self._server.serve_forever, _LOOK_SECONDS)
        self._threads = [
            threading.Thread(target=serve, name="status", daemon=True),
            threading.Thread(target=self._watch, name="status-history", daemon=True),
        ]

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    def start(self) -> StatusServer:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()
        if self._threads[0].is_alive():
            self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_REQUEST_SECONDS)

    def answer(self, path: str, query: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/health":
            wrong = self._health() or self._problem
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return status, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode()
        given = {name: values[0] for name, values in urllib.parse.parse_qs(query).items()}
        if path == "/status.json":
            return HTTPStatus.OK, "application/json", _json(self._status(given))
        if path == "/partitions.json":
            with self._lock:
                newest, rates = self._newest, self._rates
            found = partitions_data(newest, rates, given.get("topic", "")) if newest else None
            if found is not None:
                return HTTPStatus.OK, "application/json", _json(found)
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"not found\n"

    def _status(self, given: Mapping[str, str]) -> dict[str, Any]:
        with self._lock:
            found: dict[str, Any] = {"title": self._title, "problem": self._problem, "now": None}
            if self._newest is not None:
                texts = {f"{table}_with": given.get(table, "") for table in ("topics", "groups")}
                found["now"] = status_data(self._newest, self._rates, self._history, **texts)
            return found

    def _watch(self) -> None:
        while True:
            self.take()
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def take(self) -> None:
        try:
            snapshot = self._take()
        except Exception as e:
            # The page shows the problem, and the next snapshot may succeed.
            _log.debug("no snapshot", exc_info=True)
            with self._lock:
                self._problem = str(e) or repr(e)
                self._history.skip(SYSTEM_CLOCK.time_ms())
            return
        with self._lock:
            self._rates = rates_between(self._newest, snapshot)
            self._newest, self._problem = snapshot, None
            self._history.add(snapshot, self._rates)


class SnapshotCollector(Collector):
    """*Thread-safe.* Exports the newest snapshot; nothing before the first."""

    def __init__(self, newest: Callable[[], Snapshot | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        snapshot = self._newest()
        if snapshot is None:
            return
        partitions = [((t.name, str(p.number)), p) for t in snapshot.topics for p in t.partitions]
        for name, text, values in (
            ("online", "Whether a broker serves it: 1 or 0", [(at, p.leader >= 0) for at, p in partitions]),
            ("start_offset", "First offset", [(at, p.start) for at, p in partitions if p.start >= 0]),
            ("end_offset", "Offset after the last", [(at, p.end) for at, p in partitions if p.end >= 0]),
            (
                "size_bytes",
                "Size of the log",
                [(at, p.size_bytes) for at, p in partitions if p.size_bytes >= 0],
            ),
        ):
            yield _gauge(f"kafkalog_partition_{name}", text, ("topic", "partition"), values)
        members = [((group.name,), group.member_count) for group in snapshot.groups]
        yield _gauge("kafkalog_group_members", "Members of a consumer group", ("group",), members)
        lags = [((group.name,), group.lag) for group in snapshot.groups if group.lag is not None]
        text = "Offsets that a consumer group has still to read"
        yield _gauge("kafkalog_group_lag", text, ("group",), lags)
        numbers = [((load.name,), load.number) for load in snapshot.loads]
        yield _gauge("kafkalog_load_number", "Newest commit of a load", ("load",), numbers)
        lags = [((load.name,), load.lag) for load in snapshot.loads if load.lag is not None]
        yield _gauge("kafkalog_load_lag", "Offsets that a load has still to read", ("load",), lags)


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for at, value in values:
        family.add_metric(at, value)
    return family


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4 * MOST_REQUESTS
    block_on_close = False

    def __init__(self, address: tuple[str, int], status: StatusServer) -> None:
        self.status = status
        self._lock = threading.Lock()  # guards the next
        self._due: dict[socket.socket, float] = {}  # deadline of each request in progress
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.is_loopback = _is_loopback(address[0])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._due) < MOST_REQUESTS
            if has_room:
                self._due[request] = time.monotonic() + _REQUEST_SECONDS
        if has_room:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._due.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self._end(due=time.monotonic())

    def server_close(self) -> None:
        super().server_close()
        self._end(due=math.inf)

    def _end(self, *, due: float) -> None:
        """End overdue requests: the next read or write of their threads fails."""
        with self._lock:
            for request, until in self._due.items():
                if until < due:
                    with suppress(OSError):  # the client has closed it
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request for the status page failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def version_string(self) -> str:
        return "kafkalog"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.is_loopback and not _names_this_host(self.headers.get("Host", "")):
            # Prevents DNS rebinding: a foreign page whose name resolves to this address must not read ours.
            self.send_error(HTTPStatus.FORBIDDEN, "Host must be localhost or an address")
            return
        path, _, query = self.path.partition("?")
        status, kind, body = self.server.status.answer(path, query)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", self.server.status.policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (http.server's name)


def _page(title: str) -> tuple[bytes, str]:
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    digests = {}
    for tag in ("style", "script"):
        body = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digests[tag] = f"sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}"
    return text.replace("{{title}}", html.escape(title)).encode(), _POLICY.format(**digests)


def _json(found: object) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_this_host(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]")
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
