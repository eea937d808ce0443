"""An S3 server for tests, moto's, in its own process; and a gate before it that loses answers or refuses."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.foreign.ports import free_ports

BUCKET = "ledgers"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "wJalr-not-to-be-seen",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of a server with `BUCKET`."""
    (port,) = free_ports(1)
    # One request after the other: moto looks at a condition and writes in two steps.
    code = (
        "import sys, moto.server as moto\n"
        "plain = moto.run_simple\n"
        "moto.run_simple = lambda *given, **more: plain(*given, **{**more, 'threaded': False})\n"
        "moto.main(sys.argv[1:])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while True:
            try:
                assert _ask(port, "PUT", f"/{BUCKET}", b"", {})[0] == 200
                break
            except OSError:
                assert process.poll() is None, "moto's server ended"
                assert time.monotonic() < until, "moto's server does not start"
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def _ask(
    port: int, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


def error_body(code: str) -> bytes:
    """An error of S3's, with the parts that follow the message."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>S3's words on {code}.</Message>"
        "<RequestId>4442587FB7D0A2F9</RequestId><HostId>Uuag1LuByRx9e6j5Onimru9pO4ZVKnJ2Qz7/C1NPcfTWAtRPfTaOFg==</HostId></Error>"
    ).encode()


CONDITIONS = ("if-none-match", "if-match", "x-goog-if-generation-match")
"""Headers of writes with a condition, in S3's, Azure's and Google's API."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """With the usual 5 some of a burst of Hadoop's connections stay half open, and it waits for a minute."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients that are killed close their connections at any moment."""


class Gate:
    """*Thread-safe.* Passes requests on; ``script`` says what happens to the next PUTs instead.

    "lost": passed on, and the connection dropped without an answer. 5xx or 4xx: refused with this status,
    "503 SlowDown" also with this code of S3's. "late 5xx": passed on, and answered so. "slow": passed on
    after a second. "away": the connection dropped. "cut": half the answer's body is sent. "hang": passed on,
    and no answer before the gate is closed. With ``ignores_conditions`` it is a store that ignores them.
    ``weather`` is asked where the script has nothing: what happens to a request, given its headers, in lower
    case. Each answer takes ``delay_s`` longer; ``count`` is that of the requests.
    """

    def __init__(self, port: int) -> None:
        self.script: list[str] = []
        self.delay_s = 0.0
        self.count = 0
        self.weather: Callable[[Mapping[str, str]], str] = lambda _: ""
        self.ignores_conditions = False
        gate, lock = self, threading.Lock()
        self._closed = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: the second would wait for an acknowledgement

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle_expect_100(self) -> bool:
                told = super().handle_expect_100()
                self.wfile.flush()  # Hadoop's client waits for it
                return told

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:  # the client gave up; the server would wait for the rest
                    self.close_connection = True
                    return
                sent = dict(self.headers)
                with lock:
                    gate.count += 1
                    if self.command == "PUT" and gate.script:
                        fault = gate.script.pop(0)
                    else:
                        fault = gate.weather({name.lower(): value for name, value in sent.items()})
                time.sleep(gate.delay_s)
                status, headers, answer = 0, [], b""
                if fault == "away":
                    self.close_connection = True
                    return
                if fault == "slow":
                    time.sleep(1)
                    fault = ""
                if gate.ignores_conditions:
                    sent = {name: sent[name] for name in sent if name.lower() not in CONDITIONS}
                if not fault[:3].isdigit():
                    status, headers, answer = _ask(port, self.command, self.path, body, sent)
                if fault == "hang":
                    gate._closed.wait()
                if fault in ("lost", "hang"):
                    self.close_connection = True
                    return
                if fault not in ("", "cut"):
                    told, code = re.findall(r"\d{3}|[A-Z]\w+", f"{fault} Fault")[:2]
                    status, headers, answer = int(told), [], error_body(code)
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in (
                        "content-length",
                        "connection",
                        "transfer-encoding",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                of_head = {name.lower(): value for name, value in headers}.get("content-length", "0")
                self.send_header("Content-Length", str(of_head if self.command == "HEAD" else len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer[: len(answer) // 2] if fault == "cut" else answer)
                    self.close_connection |= fault == "cut"

        for method in ("GET", "PUT", "HEAD", "DELETE", "POST"):
            setattr(Handler, f"do_{method}", Handler.answer)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
