"""A small schema registry: the two paths of Confluent's REST API that readers use, over real HTTP."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistry:
    """Schemas by id and by subject. ``asked`` are the paths that were, ``failures`` come as answers first."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.failures: list[int] = []
        self.login: str | None = None
        self._by_id: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}

    def add(
        self, schema: object, *, id: int, subject: str = "s", kind: str = "AVRO", references: Any = ()
    ) -> None:
        entry = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "id": id}
        if kind != "AVRO":
            entry["schemaType"] = kind
        if references:
            entry["references"] = list(references)
        self._by_id[id] = entry
        self._subjects.setdefault(subject, []).append(id)

    def answer(self, path: str, login: str | None) -> tuple[int, object]:
        self.asked.append(path)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001}
        if self.login is not None and login != "Basic " + b64encode(self.login.encode()).decode():
            return 401, {"error_code": 401}
        match path.strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) in self._by_id:
                found = self._by_id[int(number)]
                return 200, {name: value for name, value in found.items() if name != "id"}
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                ids = self._subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                return 200, {"subject": subject, "version": at, **self._by_id[ids[at - 1]]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def running_registry() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, found = registry.answer(self.path, self.headers.get("Authorization"))
            body = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
