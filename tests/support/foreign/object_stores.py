"""Servers that others wrote for the stores of clouds: Azurite, fake-gcs-server, and S3Mock, which is unsafe.

``python -m tests.support.foreign.object_stores`` fetches them; `make interop` does so too. They run in
memory, or in a directory of their own, on loopback ports.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from tests.support.foreign.fetched import ROOT, announce, fetched, with_maven
from tests.support.foreign.ports import free_ports
from tests.support.ledger.s3_server import BUCKET, KEYS
from tests.support.network.certificates import Authority

_AZURITE = "azurite@3.35.0"
_GCS_SERVER = "github.com/fsouza/fake-gcs-server@v1.56.1"
_START_SECONDS = 120

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = base64.b64encode(b"not to be seen".ljust(64)).decode()


class ForeignStore(NamedTuple):
    """An empty bucket or container: its URL without a slash at the end, and the variables that open it."""

    url: str
    environment: Mapping[str, str]


def azurite_program() -> Path:
    """Raises `NotAvailable` without Node, npm or its registry."""
    install = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=optional"]
    name = _AZURITE.replace("@", "-")
    directory = fetched(name, "Azurite of npm", [], ["node", "--version"], [*install, _AZURITE])
    return directory / "node_modules" / ".bin" / "azurite-blob"


def gcs_server_program() -> Path:
    """Raises `NotAvailable` without Go or its module proxy. Building takes minutes, once."""
    install = ["sh", "-c", f"GOBIN=$PWD go install {_GCS_SERVER}"]
    return fetched("fake-gcs-server", "fake-gcs-server", [], ["go", "version"], install) / "fake-gcs-server"


def s3mock_jars() -> Path:
    """Raises `NotAvailable` without Java, Maven or network."""
    return with_maven("s3mock", "Adobe's S3Mock", ROOT / "tests" / "peers" / "stores" / "s3mock" / "pom.xml")


@contextmanager
def azurite(log: Path, authority: Authority | None = None) -> Iterator[ForeignStore]:
    """Azure's Blob service, from its makers; with an authority by TLS, and tokens of OAuth log in too."""
    (port,) = free_ports(1)
    scheme, tls, context = "http", [], None
    if authority is not None:
        pem = str(authority.issue("azurite", "127.0.0.1"))
        scheme, tls = "https", ["--cert", pem, "--key", pem, "--oauth", "basic"]
        context = ssl.create_default_context(cafile=authority.file)
    command = [
        "env", f"AZURITE_ACCOUNTS={ACCOUNT}:{ACCOUNT_KEY}", str(azurite_program()), "--inMemoryPersistence",
        "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
        *tls,
    ]  # fmt: skip
    path = f"/{ACCOUNT}/{BUCKET}?restype=container"
    with _running(command, log, port, "PUT", path, b"", _signed(path), context):
        yield ForeignStore(
            f"abfs://{BUCKET}@{ACCOUNT}.dfs.core.windows.net",
            {
                "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{scheme}://127.0.0.1:{port}/{ACCOUNT}",
            },
        )


def _signed(path: str) -> dict[str, str]:
    """Headers of a PUT without a body. Source: Azure's "Authorize with Shared Key"."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    resource, _, query = path.partition("?")
    lines = [f"{name}:{value}" for name, value in headers.items()]
    text = "PUT" + "\n" * 12 + "\n".join([*lines, f"/{ACCOUNT}{resource}", query.replace("=", ":")])
    signature = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
    return {**headers, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"}


@contextmanager
def gcs_server(log: Path) -> Iterator[ForeignStore]:
    """Google Cloud Storage, which takes uploads in JSON only, behind a front that makes them."""
    (port,) = free_ports(1)
    command = [
        str(gcs_server_program()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1",
        "-port", str(port), "-public-host", f"127.0.0.1:{port}",
    ]  # fmt: skip
    bucket = json.dumps({"name": BUCKET}).encode()
    with (
        _running(command, log, port, "POST", "/storage/v1/b?project=p", bucket, {}),
        _front(port) as front,
    ):
        environment = {"GOOGLE_BASE_URL": f"http://127.0.0.1:{front}", "GOOGLE_BEARER_TOKEN": "any"}
        yield ForeignStore(f"gs://{BUCKET}", environment)


@contextmanager
def s3mock(log: Path) -> Iterator[ForeignStore]:
    """A server of S3 that checks a condition and writes in two steps."""
    jars = s3mock_jars()
    port, other = free_ports(2)
    named = "com.adobe.testing.s3mock"
    command = [
        "java", "-cp", f"{jars}/*", f"{named}.S3MockApplication", f"--server.port={other}",
        f"--{named}.httpPort={port}", f"--{named}.store.root={log.parent}",
    ]  # fmt: skip
    with _running(command, log, port, "PUT", f"/{BUCKET}", b"", {}):
        yield ForeignStore(f"s3://{BUCKET}", {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})


@contextmanager
def _running(
    command: Sequence[str],
    log: Path,
    port: int,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    tls: ssl.SSLContext | None = None,
) -> Iterator[None]:
    """The server, once it has answered the request that makes the bucket."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                status, _, answer = _ask(port, method, path, body, headers, tls)
                assert status in (200, 201), answer
                break
            except OSError:
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < until, log.read_text()[-2000:]
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _ask(
    port: int,
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> tuple[int, list[tuple[str, str]], bytes]:
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=tls)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


_METADATA = "x-goog-meta-"
_BOUNDARY = "a-boundary-in-no-record"
_OWN_HEADERS = ("content-length", "connection", "transfer-encoding", "date", "server")


@contextmanager
def _front(port: int) -> Iterator[int]:
    """The port of a server that passes requests on, but ``PUT /bucket/object`` as an upload in JSON."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            headers.pop("host", None)  # it answers to its own only
            if self.command == "PUT":
                status, found, answer = _ask(port, "POST", *_upload(self.path, body, headers))
                if status == 200:
                    told = json.loads(answer)
                    found = [("ETag", f'"{told["etag"]}"'), ("x-goog-generation", told["generation"])]
                    answer = b""
            else:
                path, mark, query = self.path.partition("?")
                # It does not know a slash that is written %2F.
                plain = quote(unquote(path)) + mark + query
                status, found, answer = _ask(port, self.command, plain, body, headers)
            self.send_response(status)
            for name, value in found:
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, value)
            length = dict(found).get("Content-Length", "0") if self.command == "HEAD" else len(answer)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer)

    for method in ("GET", "PUT", "HEAD", "DELETE", "POST"):
        setattr(Handler, f"do_{method}", Handler.answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _upload(path: str, body: bytes, headers: Mapping[str, str]) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of the upload that a PUT asks for."""
    bucket, _, name = unquote(path.partition("?")[0]).lstrip("/").partition("/")
    metadata = {key[len(_METADATA) :]: value for key, value in headers.items() if key.startswith(_METADATA)}
    condition = headers.get("x-goog-if-generation-match")
    where = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart&name={quote(name, safe='')}"
    where += f"&ifGenerationMatch={condition}" if condition else ""
    kind = re.sub(r"[\r\n]", "", headers.get("content-type", "application/octet-stream"))
    parts = (
        f"--{_BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'metadata': metadata})}\r\n"
        f"--{_BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n"
    )
    told = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
    return where, parts.encode() + body + f"\r\n--{_BOUNDARY}--".encode(), told


if __name__ == "__main__":
    announce("Azurite of npm", azurite_program)
    announce("fake-gcs-server", gcs_server_program)
    announce("Adobe's S3Mock", s3mock_jars)
