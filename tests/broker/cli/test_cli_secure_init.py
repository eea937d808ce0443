"""``secure-init`` and ``add-user``: from nothing to a broker that only those with a password can use."""

from __future__ import annotations

import io
import socket
import ssl
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalog_broker.cli import main
from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.config.properties import parse_properties
from pyspark_kafkalog.errors import AuthenticationFailed
from pyspark_kafkalog.security.jaas import parse_jaas
from tests.support.client.login_rounds import refused


def topics(port: int, directory: Path, user: str, password: str) -> set[str]:
    return set(admin_client(port, directory, user, password).list_topics(timeout=60).topics)


def admin_client(port: int, directory: Path, user: str, password: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(directory / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }
    )


def test_what_it_makes_is_a_broker_that_the_admin_can_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "secure"
    assert main(["secure-init", str(place), "--port", "19093"]) == 0
    properties = parse_properties(capsys.readouterr().out)
    assert len(properties) <= 10
    assert properties == parse_properties((place / "server.properties").read_text())
    assert {path.name: path.stat().st_mode & 0o777 for path in place.iterdir() if path.is_file()} == {
        "ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o600, "server.properties": 0o644,
        "admin.properties": 0o600,
    }  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("bob's secret\n"))
    assert main(["add-user", str(place / "server.properties"), "bob"]) == 0
    admin = parse_properties((place / "admin.properties").read_text())
    password = parse_jaas(admin["sasl.jaas.config"]).options["password"]
    data = Path(properties.pop("log.dirs"))
    properties |= {"listeners": "CLIENT://127.0.0.1:0", "advertised.listeners": "CLIENT://localhost:0"}
    with start_broker(properties, data_dir=data) as broker:
        assert topics(broker.port, place, "admin", password) == set()
        client = admin_client(broker.port, place, "admin", password)
        for future in client.create_topics([NewTopic("admins", 1, 1)]).values():
            future.result(60)
        assert topics(broker.port, place, "admin", password) == {"admins"}
        assert topics(broker.port, place, "bob", "bob's secret") == set()  # he may not know of it
        given = {
            "bootstrap.servers": f"localhost:{broker.port}", "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(place / "ca.pem"), "ssl.truststore.type": "PEM",
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": "wrong",
        }  # fmt: skip
        assert isinstance(refused(given), AuthenticationFailed)
        strict = ssl.create_default_context(cafile=str(place / "ca.pem"))
        strict.verify_flags |= ssl.VERIFY_X509_STRICT
        for name in ("localhost", "127.0.0.1"):
            with strict.wrap_socket(socket.socket(), server_hostname=name) as sock:
                sock.connect(("127.0.0.1", broker.port))
                assert sock.version() == "TLSv1.3"


def test_nothing_that_is_there_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.key").write_text("precious")
    assert main(["secure-init", str(tmp_path)]) == 2
    assert "is not empty: nothing is replaced" in capsys.readouterr().err
    assert (tmp_path / "ca.key").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["alice"], "\n", "no password for alice on standard input"),
        ([""], "x\n", "a user needs a name"),
        (["alice", "--iterations", "4095"], "x\n", "--iterations 4095: 4096 to 16384"),
    ],
)
def test_a_user_without_name_or_password_is_not_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    stdin: str,
    words: str,
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'data'}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    assert main(["add-user", str(file), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "data" / "security.json").exists()


def test_users_of_a_running_broker_are_not_changed_in_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    held = FileSystem().lock(tmp_path / LOCK_NAME)
    try:
        assert main(["add-user", str(file), "alice"]) == 2
    finally:
        held.close()
    assert "a broker runs on" in capsys.readouterr().err
