"""The broker as its users start it: a process, its words and its exit code."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.properties import parse_properties

ROOT = Path(__file__).resolve().parents[3]
READY = re.compile(
    r"broker (?P<id>\d+) listens on PLAINTEXT://127\.0\.0\.1:(?P<port>\d+); "
    r"cluster id (?P<cluster>[A-Za-z0-9_-]{22}); data in (?P<data>.+)\n"
)
COMMAND = [sys.executable, "-m", "broker"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers with a data directory of the test and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, data: str = "data", port: int = 0) -> subprocess.Popen[str]:
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{port}"
        own = ["--override", listeners, "--override", f"log.dirs={tmp_path / data}"]
        process = subprocess.Popen(
            [*COMMAND, "start", *arguments, *own],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> re.Match[str]:
    """What the broker says once it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = READY.fullmatch(line)
    assert found is not None, line + process.communicate()[1]
    return found


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_gracefully(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("conf/server.properties", "--override", "node.id=7")
    said = ready(process)
    assert said["id"] == "7"
    assert said["data"] == str(tmp_path / "data")
    with socket.create_connection(("127.0.0.1", int(said["port"])), timeout=5):
        pass
    process.send_signal(number)
    code, errors = ended(process)
    assert code == 0, errors
    assert f"{number.name}: stopping" in errors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(said["port"])), timeout=5)


def test_one_wish_to_stop_may_come_twice(start: Start) -> None:
    process = start()
    ready(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 0, errors


def test_a_signal_during_the_start_is_obeyed(start: Start) -> None:
    process = start()
    assert process.stderr is not None
    # The log's first line comes before the broker serves; the signal handlers are there by then.
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 0, errors


def test_it_is_the_same_cluster_after_a_restart(start: Start) -> None:
    clusters = []
    for _ in range(2):
        process = start()
        clusters.append(ready(process)["cluster"])
        process.terminate()
        assert ended(process)[0] == 0
    assert clusters[0] == clusters[1]


def test_the_start_loads_nothing_heavy() -> None:
    code = (
        "import sys, broker.cli, broker.server.broker;"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba', 'pandas', 'typer', 'click', 'rich', 'kazoo'};"
        "sys.stdout.write(','.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--override", "log.segment.bytes=big"],
            "kafkalog-broker: --override: log.segment.bytes=big is not allowed; allowed: 1 to 2147483647\n",
        ),
        (
            ["missing.properties"],
            "kafkalog-broker: cannot read missing.properties: No such file or directory\n",
        ),
        (
            ["--log-config", "missing.ini"],
            "kafkalog-broker: cannot read missing.ini\n",
        ),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(start: Start, arguments: list[str], line: str) -> None:
    assert ended(start(*arguments)) == (2, line)


def test_a_mistake_in_the_file_names_the_file(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=0\n")
    assert ended(start(str(path))) == (
        2, f"kafkalog-broker: {path}: num.partitions=0 is not allowed; allowed: 1 to 10000\n",
    )  # fmt: skip


def test_a_file_that_configures_no_logging_is_one_line(start: Start) -> None:
    code, errors = ended(start("--log-config", "conf/server.properties"))
    assert code == 2
    assert errors.startswith("kafkalog-broker: conf/server.properties is not a logging configuration: ")
    assert errors.count("\n") == 1


def test_an_unknown_property_warns_with_the_nearest_one(start: Start) -> None:
    process = start("--override", "log.segment.byte=5", "--log-config", "conf/logging.ini")
    ready(process)
    process.terminate()
    code, errors = ended(process)
    assert code == 0
    expected = "--override: unknown property log.segment.byte is ignored; did you mean log.segment.bytes?"
    assert expected in errors


def test_a_port_in_use_is_one_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = ended(start("--log-level", "ERROR", port=port))
    assert code == 1
    assert errors.startswith("kafkalog-broker: ")
    assert f"127.0.0.1:{port}" in errors
    assert errors.count("\n") == 1


def test_a_directory_of_a_running_broker_is_one_line(start: Start, tmp_path: Path) -> None:
    first = start()
    ready(first)
    code, errors = ended(start("--log-level", "ERROR"))
    assert code == 1
    assert errors.startswith("kafkalog-broker: ")
    assert str(tmp_path / "data") in errors
    assert errors.count("\n") == 1
    assert first.poll() is None


def test_a_directory_of_another_broker_is_refused(start: Start, tmp_path: Path) -> None:
    first = start("--override", "node.id=1")
    ready(first)
    first.terminate()
    assert ended(first)[0] == 0
    code, errors = ended(start("--override", "node.id=2", "--log-level", "ERROR"))
    assert code == 1
    assert errors.startswith("kafkalog-broker: ")
    assert errors.count("\n") == 1


def test_a_directory_that_cannot_be_made_is_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, errors = ended(start("--log-level", "ERROR", data="file/data"))
    assert code == 1
    assert str(tmp_path / "file") in errors
    assert errors.splitlines()[-1].startswith("kafkalog-broker: ")
    assert "Traceback" not in errors


def test_after_a_kill_it_starts_again_on_the_same_directory(start: Start) -> None:
    process = start()
    cluster = ready(process)["cluster"]
    process.kill()
    process.communicate()
    assert ready(start())["cluster"] == cluster


@pytest.mark.parametrize(
    "arguments", [[], ["start", "--override", "x"], ["begin"], ["start", "--log-level", "x"]]
)
def test_a_misused_command_line_exits_with_two(arguments: list[str]) -> None:
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "kafkalog-broker" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_help_has_examples() -> None:
    for arguments in (["--help"], ["start", "--help"]):
        done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert "python -m broker start conf/server.properties" in done.stdout


def test_the_properties_that_it_prints_are_the_defaults() -> None:
    done = subprocess.run([*COMMAND, "properties"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert parse(BrokerConfig, parse_properties(done.stdout), source="stdout") == BrokerConfig()
