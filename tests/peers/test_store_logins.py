"""Each login that Hadoop's keys name for Azure, and Google's key file, at servers that ask for it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.stores import object_clients
from pyspark_kafkalog.ledger.stores.hadoop_keys import settings_of
from pyspark_kafkalog.ledger.stores.locations import open_store
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.object_stores import ACCOUNT, ACCOUNT_KEY, ForeignStore, azurite, gcs_server
from tests.support.network.certificates import Authority

TENANT, CLIENT, SECRET = "our-tenant", "our-client", "not to be seen"
ASSERTION = "a token of the cluster, not to be seen"


def issued_token() -> str:
    """A token as Azure's; Azurite looks at its times and names, not at its signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com", "iss": f"https://sts.windows.net/{TENANT}/",
        "iat": now - 60, "nbf": now - 60, "exp": now + 3600,
    }  # fmt: skip
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in [*parts, b"signed"])


class Login(BaseHTTPRequestHandler):
    """Gives tokens for the client's secret, for the cluster's assertion, and to the machine itself."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        known = form.get("client_secret") == [SECRET] or form.get("client_assertion") == [ASSERTION]
        right = self.path == f"/{TENANT}/oauth2/v2.0/token" and form["client_id"] == [CLIENT]
        self._answer(known and right)

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        right = asked.path == "/msi" and parse_qs(asked.query)["client_id"] == [CLIENT]
        self._answer(right and self.headers["Metadata"] == "true")

    def _answer(self, right: bool) -> None:
        found: dict[str, object] = {"error": "invalid_client"}
        if right:
            lasts = {"expires_in": 3600, "expires_on": str(int(time.time()) + 3600)}
            found = {"access_token": issued_token(), "token_type": "Bearer", **lasts}
        body = json.dumps(found).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    """What both servers have their certificates from, and our clients trust."""
    made = Authority.made(tmp_path_factory.mktemp("authority"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(made.file))
        yield made


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[ForeignStore]:
    try:
        with azurite(authority.directory / "azurite.log", authority) as running:
            yield running
    except NotAvailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def login(authority: Authority) -> Iterator[str]:
    """The URL of the server of tokens."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Login)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("login", "127.0.0.1"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def shared_access(permissions: str) -> str:
    """A token for the account's blobs. Source: Azure's "Create an account SAS"."""
    start, end = ((datetime.now(timezone.utc) + timedelta(hours=h)).strftime("%FT%TZ") for h in (-1, 1))
    fields = [ACCOUNT, permissions, "b", "co", start, end, "", "https", "2021-12-02", "", ""]
    signature = hmac.digest(base64.b64decode(ACCOUNT_KEY), "\n".join(fields).encode(), hashlib.sha256)
    return (
        f"?sv=2021-12-02&ss=b&srt=co&sp={permissions}&st={start}&se={end}&spr=https"
        f"&sig={quote(base64.b64encode(signature).decode(), safe='')}"
    )


OAUTH = "fs.azure.account.oauth2"


def oauth(provider: str, **given: str) -> dict[str, str]:
    named = {f"{OAUTH}.{name.replace('_', '.')}": value for name, value in given.items()}
    provider = f"org.apache.hadoop.fs.azurebfs.oauth2.{provider}TokenProvider"
    kind = {"fs.azure.account.auth.type": "OAuth", "fs.azure.account.oauth.provider.type": provider}
    return {**kind, **named}


def opened(server: ForeignStore, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL in the container, which this process opens with these keys from now on."""
    for name in server.environment:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(object_clients, "_given", {})
    endpoint = {"fs.azure.abfs.endpoint": urlsplit(server.environment["AZURE_STORAGE_ENDPOINT"]).netloc}
    address = object_clients.address_of(server.url)
    object_clients.give_settings(address, settings_of(address, {**endpoint, **keys}.get))
    return f"{server.url}/{time.time_ns()}"


LOGINS: dict[str, Callable[[str, Path], dict[str, str]]] = {
    "account's key": lambda login, file: {"fs.azure.account.key": ACCOUNT_KEY},
    "SAS": lambda login, file: {
        "fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": shared_access("rwdl"),
    },
    "client's secret": lambda login, file: oauth(
        "ClientCreds", client_id=CLIENT, client_secret=SECRET,
        client_endpoint=f"{login}/{TENANT}/oauth2/token",
    ),
    "managed identity": lambda login, file: oauth("Msi", client_id=CLIENT, msi_endpoint=f"{login}/msi"),
    "workload identity": lambda login, file: oauth(
        "WorkloadIdentity", client_id=CLIENT, msi_tenant=TENANT, msi_authority=login, token_file=str(file)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGINS)
def test_a_login_of_azure_opens_the_container(
    name: str, server: ForeignStore, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(ASSERTION)
    store = open_store(opened(server, LOGINS[name](login, file), monkeypatch))
    assert store.create("load.json", b"data")
    assert (store.create("load.json", b"other"), store.read("load.json")) == (False, b"data")


@pytest.mark.parametrize("name", [name for name in LOGINS if name != "managed identity"])
def test_a_wrong_secret_is_refused_and_not_repeated(
    name: str, server: ForeignStore, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("tell-nobody")
    wrong = {
        "fs.azure.account.key": base64.b64encode(b"tell-nobody").decode(),
        "fs.azure.sas.fixed.token": shared_access("r") + "tell-nobody",
        f"{OAUTH}.client.secret": "tell-nobody",
    }
    keys = {key: wrong.get(key, value) for key, value in LOGINS[name](login, file).items()}
    store = open_store(opened(server, keys, monkeypatch))
    with pytest.raises(LoadError, match="check the credentials and what they allow") as e:
        store.create("load.json", b"data")
    for secret in ("tell-nobody", "sig=", wrong["fs.azure.account.key"]):
        assert secret not in str(e.value)


def test_googles_key_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file tells the client to go without a token: only a client that read it can write."""
    try:
        with gcs_server(tmp_path / "server.log") as server:
            file = tmp_path / "key.json"
            names = ("client_email", "private_key", "private_key_id")
            file.write_text(json.dumps({**dict.fromkeys(names, ""), "disable_oauth": True}))
            keys = {
                "fs.gs.auth.service.account.json.keyfile": str(file),
                "fs.gs.storage.root.url": server.environment["GOOGLE_BASE_URL"],
            }
            monkeypatch.setattr(object_clients, "_given", {})
            address = object_clients.address_of(server.url)
            object_clients.give_settings(address, settings_of(address, keys.get))
            assert open_store(f"{server.url}/x").create("load.json", b"data")
    except NotAvailable as e:
        pytest.skip(str(e))
