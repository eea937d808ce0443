"""The broker as its users start it: a process, its words and its exit code."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.properties import parse_properties
from tests.support.command_line import BROKER_COMMAND, SECONDS, broker_command

ROOT = Path(__file__).resolve().parents[3]
READY = re.compile(
    r"broker (?P<id>\d+) listens on PLAINTEXT://127\.0\.0\.1:(?P<port>\d+); "
    r"cluster id (?P<cluster>[A-Za-z0-9_-]{22}); data in (?P<data>.+)\n"
)

Start = Callable[..., "subprocess.Popen[str]"]


def _overrides(*properties: str) -> list[str]:
    return [word for given in properties for word in ("--override", given)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers with a data directory of the test and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        own = [
            "--override",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "--override",
            f"log.dirs={tmp_path / 'data'}",
        ]
        process = subprocess.Popen(
            [*BROKER_COMMAND, "start", *arguments, *own],
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
    _, errors = process.communicate(timeout=SECONDS)
    return process.returncode, errors


def test_it_says_where_it_listens_and_is_the_same_cluster_however_it_was_ended(
    start: Start, tmp_path: Path
) -> None:
    clusters = set()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
        process = start("conf/server.properties", "--override", "node.id=7")
        said = ready(process)
        assert (said["id"], said["data"]) == ("7", str(tmp_path / "data"))
        clusters.add(said["cluster"])
        socket.create_connection(("127.0.0.1", int(said["port"]))).close()
        process.send_signal(number)
        ended_with, errors = ended(process)
        assert ended_with == code, errors
        assert (f"{number.name}: stopping" in errors) == (code == 0)
    clusters.add(ready(start("--override", "node.id=7"))["cluster"])
    assert len(clusters) == 1


def test_the_start_loads_nothing_heavy() -> None:
    code = (
        "import sys, kafkalog_broker.cli, kafkalog_broker.server.broker;"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba', 'pandas', 'typer', 'click', 'rich', 'kazoo'};"
        "sys.stdout.write(','.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unknown_property_warns_with_the_nearest_one(start: Start) -> None:
    process = start("--override", "log.segment.byte=5", "--log-config", "conf/logging.ini")
    ready(process)
    process.terminate()
    code, errors = ended(process)
    assert code == 0
    expected = "--override: unknown property log.segment.byte is ignored; did you mean log.segment.bytes?"
    assert expected in errors


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--override", "log.segment.bytes=big"],
            "kafkalog-broker: --override: log.segment.bytes=big is not allowed; allowed: 14 to 2147483647\n",
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
def test_a_mistake_in_the_configuration_is_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    ran = broker_command("start", *arguments, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", line)


def test_a_mistake_in_the_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=0\n")
    ran = broker_command("start", str(path))
    assert (ran.returncode, ran.stderr) == (
        2, f"kafkalog-broker: {path}: num.partitions=0 is not allowed; allowed: 1 to 10000\n",
    )  # fmt: skip


def test_a_file_that_configures_no_logging_is_one_line() -> None:
    ran = broker_command("start", "--log-config", "conf/server.properties", cwd=ROOT)
    assert ran.returncode == 2
    assert ran.stderr.startswith("kafkalog-broker: conf/server.properties is not a logging configuration: ")
    assert ran.stderr.count("\n") == 1


CannotStart = Callable[..., list[str]]


@pytest.fixture
def cannot_start(caplog: pytest.LogCaptureFixture) -> CannotStart:
    """What a broker says, errors in its log first, that is told to serve on this directory and port."""

    def run(data: Path, *overrides: str, port: int = 0) -> list[str]:
        caplog.clear()
        own = (f"log.dirs={data}", f"listeners=PLAINTEXT://127.0.0.1:{port}", *overrides)
        ran = broker_command("start", *_overrides(*own))
        assert (ran.returncode, ran.stdout) == (1, "")
        lines = ran.stderr.splitlines()
        assert lines[-1].startswith("kafkalog-broker: ")
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] + lines

    return run


def test_a_port_in_use_is_one_line(cannot_start: CannotStart, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = cannot_start(tmp_path / "data", port=port)
    assert f"127.0.0.1:{port}" in line


def test_a_directory_of_another_broker_is_refused(cannot_start: CannotStart, tmp_path: Path) -> None:
    start_broker({"node.id": 1}, data_dir=tmp_path / "data").stop()
    (line,) = cannot_start(tmp_path / "data", "node.id=2")
    assert str(tmp_path / "data") in line


def test_a_directory_that_cannot_be_made_is_one_line_and_one_of_the_log(
    cannot_start: CannotStart, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    logged, _ = cannot_start(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in logged


@pytest.mark.parametrize(
    "arguments", [[], ["start", "--override", "x"], ["begin"], ["start", "--log-level", "x"]]
)
def test_a_misused_command_line_exits_with_two(arguments: list[str]) -> None:
    ran = broker_command(*arguments)
    assert ran.returncode == 2
    assert "kafkalog-broker" in ran.stderr.splitlines()[-1]


def test_help_has_examples() -> None:
    for arguments in (["--help"], ["start", "--help"]):
        ran = broker_command(*arguments)
        assert ran.returncode == 0
        assert "python -m kafkalog_broker start conf/server.properties" in ran.stdout


def test_the_properties_that_it_prints_are_the_defaults() -> None:
    ran = subprocess.run(
        [*BROKER_COMMAND, "properties"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert parse(BrokerConfig, parse_properties(ran.stdout), source="stdout") == BrokerConfig()
