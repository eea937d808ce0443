"""Every way to read and write over TLS with a login, and where its passwords are found afterwards: nowhere.

The session keeps its event log and logs all it can; files, logs, errors, plans and the list of processes are
searched for the secrets, and for their base64.
"""

from __future__ import annotations

import base64
import gzip
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.command_line import kafkalog
from tests.support.foreign.clients07 import ClientError
from tests.support.network.certificates import Authority
from tests.support.spark.spark_environments import SparkProcess
from tests.support.until import until

pytestmark = pytest.mark.long("Spark drivers of its own")

Errand = Callable[..., Any]

LOGIN, STORE, WRONG = (uuid.uuid4().hex for _ in range(3))
"""The login's password, the key store's, and one that the broker refuses."""
ROWS = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything leaves its files."""
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(place: Path, authority: Authority) -> Iterator[EmbeddedBroker]:
    """It wants a certificate and a password, and keeps no password where it could be found."""
    given = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("server", "127.0.0.1"),
        "ssl.truststore.location": authority.file,
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'PlainLoginModule required user_etl="{LOGIN}";',
        "num.partitions": 2,
    }
    with start_broker(given, data_dir=place / "broker") as running:
        yield running


@pytest.fixture(scope="module")
def properties(broker: EmbeddedBroker, authority: Authority) -> dict[str, str]:
    issued = authority.issue("client", "client.example.org").read_bytes()
    store = authority.directory / "client.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            load_pem_private_key(issued, None),  # type: ignore[arg-type]
            load_pem_x509_certificate(issued),
            None,
            BestAvailableEncryption(STORE.encode()),
        )
    )
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_SSL')}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="etl" password="{LOGIN}";',
        "ssl.truststore.location": str(authority.file),
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": STORE,
    }


@pytest.fixture(scope="module")
def options(properties: dict[str, str]) -> Callable[..., dict[str, str]]:
    """``options(subscribe="t")``: of a source or a sink."""
    given = {f"kafka.{name}": value for name, value in properties.items()}
    return lambda **others: given | others


@pytest.fixture(scope="module")
def do(place: Path) -> Iterator[Errand]:
    (place / "events").mkdir()
    configs = {
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{place}/events",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    process = SparkProcess(place / "spark.log", configs=configs)
    try:
        yield lambda errand, /, **named: process.call(f"tests.support.spark.spark_errands:{errand}", **named)
    finally:
        process.close()


@pytest.fixture(scope="module")
def config_file(properties: dict[str, str], authority: Authority) -> Path:
    file = authority.directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file


def test_all_jobs_run_secured_and_leave_no_secret(
    do: Errand, options: Callable[..., dict[str, str]], config_file: Path, place: Path
) -> None:
    said = []

    def command(*arguments: str, typed: str = "") -> str:
        server = options()["kafka.bootstrap.servers"]
        ran = kafkalog(*arguments, "--command-config", str(config_file), server=server, said=typed)
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout + ran.stderr)
        return ran.stdout

    for topic in ("flights", "copied"):
        command("topics", "create", topic, "--partitions", "2")
    do("write", target=options(topic="flights"), count=ROWS)
    command("produce", "flights", typed="typed\n")
    values = sorted([*map(str, range(ROWS)), "typed"])
    assert sorted(command("consume", "flights").split()) == values

    read = do("read", options=options(subscribe="flights"))
    assert sorted(value for _, _, value in read["rows"]) == values
    do("explained", options=options(subscribe="flights"))

    stream = do(
        "stream", options=options(subscribe="flights", startingOffsets="earliest"),
        target=options(topic="copied"), checkpoint=str(place / "checkpoint"), name="copy", group="followed",
    )  # fmt: skip
    assert (sum(stream["batches"]), stream["behind"][-1]) == (ROWS + 1, 0)
    assert sorted(command("consume", "copied").split()) == values
    until(lambda: "followed" in command("groups", "list"))  # which the listener commits beside the query

    files = {"name": "flights", "offsets": str(place / "offsets"), "path": str(place / "table")}
    assert do("load", options=options(subscribe="flights"), **files)["records"] == ROWS + 1
    planned = command("load", "flights", "--topic", "flights", "--offsets", files["offsets"], "--dry-run")
    assert "nothing" in planned
    processes = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]

    wrong = options(subscribe="flights") | {
        "kafka.sasl.jaas.config": f'PlainLoginModule required username="etl" password="{WRONG}";'
    }
    for errand, others in (("read", {}), ("load", files)):
        with pytest.raises(ClientError, match=r"check kafka\.sasl\.jaas\.config") as refused:
            do(errand, options=wrong, **others)
        said.append(str(refused.value))

    assert leaks(place) == []
    assert [text for text in (*said, *processes) if any(secret in text for secret in searched())] == []


def test_a_table_keeps_its_options_from_the_event_log(
    do: Errand, options: Callable[..., dict[str, str]], place: Path
) -> None:
    """Spark hides what it takes for secret there, by name or value."""
    given = ", ".join(f"`{name}` '{value}'" for name, value in options(subscribe="flights").items())
    table = f"CREATE TEMPORARY VIEW flights USING kafkalog OPTIONS ({given})"
    rows = do("sql", statements=[table, "SELECT count(*) FROM flights"])
    assert rows == [[ROWS + 1]]
    events = "".join(file.read_text() for file in (place / "events").rglob("events_*"))
    assert "ssl.keystore.password -> *********(redacted)" in events
    assert leaks(place) == []


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_the_search_finds_what_is_there(tmp_path: Path, before: str) -> None:
    text = f"{before}{STORE} and more".encode()
    for name, data in (("plain", text), ("encoded", base64.b64encode(text)), ("zipped", gzip.compress(text))):
        (tmp_path / name).write_bytes(data)
    assert {name for name, _ in leaks(tmp_path)} == {"plain", "encoded", "zipped"}


def searched() -> list[str]:
    """The secrets as they are, and as base64 has them wherever they begin."""
    found = []
    for secret in (LOGIN, STORE, WRONG):
        found.append(secret)
        for before in range(3):
            text = base64.b64encode(b"." * before + secret.encode()).decode()
            found.append(text[4 if before else 0 : -4])
    return found


def leaks(place: Path) -> list[tuple[str, str]]:
    """Files below ``place`` with a secret in them, and what stands around it."""
    found = []
    for file in place.rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        for secret in searched():
            at = data.find(secret.encode())
            if at >= 0:
                found.append((str(file.relative_to(place)), repr(data[max(0, at - 60) : at + 10])))
    return found
