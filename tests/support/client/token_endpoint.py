"""An OAuth token endpoint that answers as a test tells it to."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request."""

    authorization: str
    body: str


def unsecured_token(user: str, seconds: float, *, mark: str = "") -> str:
    """A token without a signature, which Apache Kafka accepts by default."""
    now = time.time()
    claims = {"sub": user, "iat": now, "exp": now + seconds, "mark": mark}
    parts = ({"alg": "none"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


class TokenEndpoint:
    """*Thread-safe for the test's thread.* ``answers`` come first, then tokens of alice."""

    def __init__(self, *, token_seconds: float = 3600, key: Path | None = None) -> None:
        """``key``: a PEM file of key and certificate, with which the address is https://localhost."""
        self.asked: list[Asked] = []
        self.answers: deque[tuple[int, Any]] = deque()
        self._token_seconds = token_seconds
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = endpoint.answer(Asked(self.headers["Authorization"], body))
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", endpoint.url)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        if key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def answer(self, asked: Asked) -> tuple[int, Any]:
        self.asked.append(asked)
        if self.answers:
            return self.answers.popleft()
        token = unsecured_token("alice", self._token_seconds, mark=str(len(self.asked)))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self._token_seconds)}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> TokenEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
