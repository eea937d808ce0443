"""Serves the page, its JSON, Prometheus metrics and a health check over HTTP, without a login."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.status.exposition import SnapshotCollector
from pyspark_kafkalog.status.snapshot import History, Snapshot, as_json, partitions_as_json

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""Between two moments of the history."""

MOST_REQUESTS = 16
"""Requests in hand; more are answered 503 at once."""

_REQUEST_SECONDS = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"


def parse_listener(text: str, name: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``; `InvalidConfig` has the property's ``name``."""
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

    ``/`` is the page, ``/status.json`` the newest snapshot and the history, ``/partitions.json?topic=T`` the
    partitions of a topic, ``/metrics`` all metrics of the registry and of the snapshot, ``/health`` 200 or,
    with the reason, 503. Owns its threads and its socket.
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
        """``take`` asks for the present; ``health`` is what is wrong, in words, or None. Raises
        `ConnectionLost` if the address is taken.
        """
        self._take, self._health, self._title = take, health, title
        self._registry = registry if registry is not None else CollectorRegistry()
        self._registry.register(SnapshotCollector(lambda: self._newest))
        self._page = _page(title)
        self._lock = threading.Lock()  # guards the three below
        self._newest: Snapshot | None = None
        self._history = History()
        self._problem: str | None = None
        self._ended = threading.Event()
        try:
            self._server = _Server(address, self)
        except OSError as e:
            raise ConnectionLost(f"cannot listen on {address[0]}:{address[1]}: {e.strerror or e}") from e
        self._threads = [
            threading.Thread(
                target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="status", daemon=True
            ),
            threading.Thread(target=self._watch, name="status-history", daemon=True),
        ]

    @property
    def url(self) -> str:
        """Of the page."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self._server.is_loopback

    def start(self) -> StatusServer:
        """Start serving."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop, and close the socket."""
        self._ended.set()
        if self._threads[0].is_alive():
            self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_REQUEST_SECONDS)

    def answer(self, path: str, query: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body of a request."""
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/health":
            wrong = self._health() or self._problem
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return status, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode()
        if path == "/status.json":
            return HTTPStatus.OK, "application/json", _json(self._status())
        if path == "/partitions.json":
            (topic, *_) = urllib.parse.parse_qs(query).get("topic", [""])
            snapshot = self._newest
            found = partitions_as_json(snapshot, topic) if snapshot else None
            if found is not None:
                return HTTPStatus.OK, "application/json", _json(found)
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"not found\n"

    def _status(self) -> dict[str, Any]:
        with self._lock:
            newest, history, problem = self._newest, self._history.as_json(), self._problem
        found = as_json(newest) if newest else {"at_ms": None}
        return {"title": self._title, "now": found, "history": history, "problem": problem}

    def _watch(self) -> None:
        while True:
            self.take()
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def take(self) -> None:
        """Take a snapshot now."""
        try:
            snapshot = self._take()
        except Exception as e:
            # The page says it, and the next one may succeed.
            _log.debug("no snapshot", exc_info=True)
            with self._lock:
                self._problem = str(e) or repr(e)
            return
        with self._lock:
            self._newest, self._problem = snapshot, None
            self._history.add(snapshot)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4 * MOST_REQUESTS
    block_on_close = False

    def __init__(self, address: tuple[str, int], status: StatusServer) -> None:
        self.status = status
        self._room = threading.BoundedSemaphore(MOST_REQUESTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.is_loopback = _is_loopback(address[0])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            try:
                request.sendall(_BUSY)
            except OSError:
                pass
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request for the status page failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def version_string(self) -> str:
        return "kafkalog"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.is_loopback and not _names_this_host(self.headers.get("Host", "")):
            # A page of elsewhere whose name was made to mean this address must not read ours.
            self.send_error(HTTPStatus.FORBIDDEN, "Host must be localhost or an address")
            return
        path, _, query = self.path.partition("?")
        status, kind, body = self.server.status.answer(path, query)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (http.server's name)


def _page(title: str) -> bytes:
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    return text.replace("{{title}}", escaped).encode()


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
