"""A real ZooKeeper with TLS and logins: who gets in, whose nodes are whose, and what the errors say."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient, KeeperState

from kafkalog_broker.embedded import start_broker
from kafkalog_broker.security.file_stores import CredentialChange
from kafkalog_broker.security.zookeeper_stores import ZooKeeperUsers
from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.security.scram import ScramCredential
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.protection import Connector
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import SessionEvent, ZooKeeperError, ZooKeeperSession, session_of
from tests.support.network.certificates import Authority
from tests.support.until import until
from tests.support.zookeeper import PATIENT, server_in

TEXTS = {name: str(value) for name, value in PATIENT.items()}
SECRET = "kafka's secret"
LOGINS = """\
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="kafka's secret" user_eve="eve";
};
"""


def login(user: str = "kafka", password: str = SECRET) -> dict[str, str]:
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    return {"zookeeper.sasl.jaas.config": f'{module} required username="{user}" password="{password}";'}


class Secured(NamedTuple):
    server: ZooKeeperServer
    authority: Authority

    def tls(self, **more: object) -> dict[str, Any]:
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": str(self.authority.file),
            **TEXTS,
            **more,
        }

    def session(self, chroot: str, properties: dict[str, Any], *, plain: bool = False) -> ZooKeeperSession:
        place = (self.server.connect if plain else self.server.secure_connect) + chroot
        return session_of(parse(ZooKeeperConfig, {"zookeeper.connect": place, **properties}, source="test"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    place = tmp_path_factory.mktemp("secured")
    (place / "jaas.conf").write_text(LOGINS)
    authority = Authority.made(place / "certificates")
    given = {
        "secure_client_port": 0,
        "ssl_key_store_location": str(authority.issue("server", "127.0.0.1")),
        "ssl_trust_store_location": str(authority.file),
        "login_config": str(place / "jaas.conf"),
    }
    with server_in(place / "zookeeper", **given) as server:
        yield Secured(server, authority)


def acls(secured: Secured, path: str) -> set[tuple[str, str, tuple[str, ...]]]:
    options = {"mechanism": "DIGEST-MD5", "username": "kafka", "password": SECRET}
    client = KazooClient(secured.server.connect, sasl_options=options)
    client.start(60)
    try:
        found, _ = client.get_acls(path)
    finally:
        client.stop()
        client.close()
    return {(acl.id.scheme, acl.id.id, tuple(acl.acl_list)) for acl in found}


OURS, WORLD = ("sasl", "kafka", ("ALL",)), ("world", "anyone")


@pytest.mark.long("ZooKeeper, stopped and started")
def test_nodes_belong_to_the_login_that_made_them(secured: Secured) -> None:
    given = secured.tls(**login()) | {"zookeeper.set.acl": "true"}
    with (
        secured.session("/a/b", given) as ours,
        secured.session("/a/b", login("eve", "eve") | TEXTS, plain=True) as eves,
    ):
        ours.create("/kafka/config/users/alice", b"secret")
        ours.create("/kafka/brokers/ids/1", b"one", ephemeral=True)
        ours.create("/kafka/consumers/g/offsets/t/0", b"7")
        everybody_reads = {OURS, (*WORLD, ("READ",))}
        for path in ("/a", "/a/b/kafka", "/a/b/kafka/brokers/ids/1", "/a/b/kafka/consumers/g/offsets/t/0"):
            assert acls(secured, path) == everybody_reads, path
        assert acls(secured, "/a/b/kafka/consumers") == {(*WORLD, ("ALL",))}
        with pytest.raises(ZooKeeperError, match="/kafka/config/users/alice belongs to another login"):
            eves.read("/kafka/config/users/alice")
        node = eves.read("/kafka/brokers/ids/1")
        assert node is not None
        assert node.data == b"one"
        with pytest.raises(ZooKeeperError, match="belongs to another login"):
            eves.write("/kafka/brokers/ids/1", b"two")
        with pytest.raises(ZooKeeperError, match="belongs to another login"):
            eves.create("/kafka/config/users/eve", b"")


def test_a_certificate_is_an_identity_too(secured: Secured) -> None:
    own = secured.authority.issue("client", "client", common_name="us")
    given = secured.tls(**{"zookeeper.ssl.keystore.location": str(own), "zookeeper.set.acl": "true"})
    with secured.session("/c", given) as session:
        session.create("/x", b"")
    assert sorted(scheme for scheme, *_ in acls(secured, "/c/x")) == ["world", "x509"]


def test_nodes_from_before_are_protected_when_brokers_connect(secured: Secured) -> None:
    """Credentials that the world could read until then, and a parent in which it could remove them."""
    credential = ScramCredential.of_salted("SCRAM-SHA-256", b"s" * 32, b"salt", 4096)
    with secured.session("/d", TEXTS, plain=True) as session:
        before = ZooKeeperUsers(session, JsonLayout())
        before.connect()
        before.change([CredentialChange("alice", "SCRAM-SHA-256", credential)])
        secret = before.secret()
    with secured.session("/d", secured.tls(**login()) | {"zookeeper.set.acl": "true"}) as session:
        after = ZooKeeperUsers(session, JsonLayout())
        after.connect()
        assert after.all() == {"alice": {"SCRAM-SHA-256": credential}}
        assert after.secret() == secret
    assert acls(secured, "/d/kafka/config/unknown_users_secret") == {OURS}
    assert acls(secured, "/d/kafka/config/users/alice") == {OURS}
    assert acls(secured, "/d/kafka/config/users") == {OURS}
    assert acls(secured, "/d/kafka/config/changes") == {OURS, (*WORLD, ("READ",))}


class Cutter:
    """*Not thread-safe.* A proxy that ends ``cuts`` new connections after ZooKeeper's first answer."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.cuts = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def end_all(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.end_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += client, server
                self.cuts -= 1
                last = self.cuts >= 0
                for pair in ((client, server, False), (server, client, last)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, once: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                if once:
                    break
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def test_a_login_that_the_server_did_not_live_to_answer_is_tried_again(secured: Secured) -> None:
    """For kazoo that is a wrong password, and the end: the broker would never be registered again."""
    proxy = Cutter(secured.server.connect)
    properties = login() | TEXTS | {"zookeeper.connect": f"{proxy.address}/h", "zookeeper.set.acl": "true"}
    events: list[SessionEvent] = []
    with session_of(parse(ZooKeeperConfig, properties, source="test")) as session:
        session.listen(events.append)
        session.create("/x", b"one")
        proxy.cuts = 1
        proxy.end_all()
        until(lambda: SessionEvent.LOST in events)
        assert (node := session.read("/x")) is not None
        assert node.data == b"one"
        until(lambda: events[-1] is SessionEvent.RENEWED)
    proxy.close()


def test_what_tls_has_decrypted_already_is_ready_to_be_read(secured: Secured) -> None:
    """Two answers in one record, as a proxy before ZooKeeper sends them: the socket itself has no more."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.authority.issue("proxy", "127.0.0.1"))

    def serve() -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
            peer.sendall(b"onetwo")
            peer.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    trusting = ssl.create_default_context(cafile=secured.authority.file)
    connector = Connector(lambda: trusting, answer_seconds=60, connecting=lambda: None)
    with connector.create_connection(
        address=listener.getsockname(), hostname="127.0.0.1", timeout=60
    ) as connection:
        assert connection.recv(3) == b"one"
        assert connector.select([connection], [], [], 60) == ([connection], [], [])
        assert connection.recv(3) == b"two"
        assert connector.select([connection], [], [], 0) == ([], [], [])
    thread.join(60)
    listener.close()


@pytest.mark.parametrize("step", ["start_async", "start"])
def test_a_refused_login_is_named_also_if_we_look_when_all_is_over(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    # The one that waits for the connection again would do so until its time is over.
    limit = {**TEXTS, "zookeeper.connection.timeout.ms": "3000" if step == "start_async" else "120000"}
    session = secured.session("/i", login(password="wrong") | limit, plain=True)
    begin = getattr(session._client, step)

    def slowly(*given: Any, **named: Any) -> Any:
        begun = begin(*given, **named)
        until(lambda: session._client.client_state == KeeperState.CLOSED)
        return begun

    monkeypatch.setattr(session._client, step, slowly)
    with pytest.raises(ZooKeeperError, match="refused the login of 'kafka'"):
        session.start()


def test_what_is_wrong_is_named(secured: Secured, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    def error(
        said: str, properties: dict[str, Any], *, plain: bool = False, server: Secured = secured
    ) -> str:
        text = ""
        for limit_ms in (
            700,
            5000,
            30_000,
            120_000,
        ):  # it waits that long in any case; a slow machine needs longer
            limit = dict.fromkeys(
                ("zookeeper.connection.timeout.ms", "zookeeper.session.timeout.ms"), str(limit_ms)
            )
            with pytest.raises((ConnectionLost, ZooKeeperError)) as refused:
                server.session("/f", properties | limit, plain=plain).start()
            text = str(refused.value)
            assert SECRET not in text
            assert "wrong" not in text
            if said in text:
                break
        assert said in text
        return text

    other = Authority.made(tmp_path)
    elsewhere = Secured(zookeeper, other)
    error(
        "refused the login of 'kafka': check zookeeper.sasl.jaas.config",
        secured.tls(**login(password="wrong")),
    )
    error("does not answer the login of 'kafka'", login(), plain=True, server=elsewhere)
    foreign = secured.tls(**{"zookeeper.ssl.truststore.location": str(other.file)})
    assert "check zookeeper.ssl.truststore.location" in error("is not trusted", foreign)
    error("is this its secureClientPort", secured.tls(), plain=True)
    error("is this a port for TLS (zookeeper.ssl.client.enable=true)", {})
    place = {"zookeeper.connect": secured.server.secure_connect.replace("127.0.0.1", "localhost")}
    error("not of localhost: use a name that it has", secured.tls(**place))
    place["zookeeper.ssl.endpoint.identification.algorithm"] = ""
    with session_of(parse(ZooKeeperConfig, secured.tls(**place), source="test")) as session:
        assert session.connected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zookeeper.set.acl": "true"}, "needs a login, zookeeper.sasl.jaas.config, or a certificate"),
        ({"zookeeper.ssl.crl.enable": "true"}, "zookeeper.ssl.crl.enable"),
        ({"zookeeper.sasl.jaas.config": "Login required username=a;"}, "has no password"),
        ({"zookeeper.sasl.jaas.config": "Login required username="}, "zookeeper.sasl.jaas.config: "),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/nowhere"},
            "zookeeper.ssl.truststore.location",
        ),
    ],
)
def test_properties_that_cannot_work_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        session_of(parse(ZooKeeperConfig, {"zookeeper.connect": "h:1", **given}, source="test"))


@pytest.mark.long("ZooKeeper, stopped and started")
def test_brokers_and_consumers_of_a_protected_zookeeper(secured: Secured, tmp_path: Path) -> None:
    """Users are shared without being asked for, and the password is in no file that the broker writes."""
    place = {"zookeeper.connect": f"{secured.server.secure_connect}/g"}
    given = secured.tls(**login()) | place | {"zookeeper.set.acl": "true"}
    properties = given | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    with start_broker(properties, data_dir=tmp_path / "data") as broker:
        assert broker.running
        credential = ScramCredential.of_password("SCRAM-SHA-256", "x", salt=b"salt", iterations=4096)
        with secured.session("/g", given) as session:
            users = ZooKeeperUsers(session, JsonLayout())
            users.connect()
            users.change([CredentialChange("alice", "SCRAM-SHA-256", credential)])
        until(lambda: round_trips(broker.port_of("SASL_PLAINTEXT")))
        consumer = ConsumerConnector(given | {"groupid": "g", "protocol": "0.8"})
        consumer.create_message_streams({"t": 1})
        consumer.shutdown()
        assert acls(secured, "/g/kafka/consumers/g") == {OURS, (*WORLD, ("READ",))}
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [data for data in kept if SECRET.encode() in data]


def round_trips(port: int) -> bool:
    client = AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "x",
        }
    )  # fmt: skip
    try:
        client.list_topics(timeout=10)
    except KafkaException:
        return False
    return True
