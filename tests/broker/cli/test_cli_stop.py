"""``stop`` ends the broker of a directory, and nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.cli import main
from kafkalog_broker.disk.data_directory import CLEAN_SHUTDOWN_NAME, LOCK_NAME
from kafkalog_broker.disk.process_lock import hold
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.command_line import BROKER_COMMAND, SECONDS, broker_command
from tests.support.manual_clock import ManualClock
from tests.support.stopping import stopped
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def running(data: Path) -> Iterator[EmbeddedBroker]:
    with start_broker(data_dir=data) as broker:
        yield broker


def test_the_broker_that_a_properties_file_names_is_stopped_gracefully_and_waited_for(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties, other = tmp_path / "server.properties", tmp_path / "other"
    other.mkdir()
    properties.write_text(f"log.dirs={other},{data}\n")
    running = subprocess.Popen(
        [*BROKER_COMMAND, "start", "--override", f"log.dirs={data}", "--override", "listeners=PLAINTEXT://127.0.0.1:0"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with running:
        try:
            assert running.stdout is not None
            assert "listens on" in running.stdout.readline()
            # Somebody must take note of its end, or it stays a zombie; `stop` does not wait for that.
            assert main(["stop", str(properties), "--timeout", "600"]) == 0
            said = capsys.readouterr()
            assert said.out == f"the broker on {data} has stopped\n"
            first = f"kafkalog-broker: asked process {running.pid}, the broker on {data}, to stop"
            assert said.err.splitlines()[0] == first
            assert running.wait(SECONDS) == 0
        finally:
            running.kill()
    assert (data / CLEAN_SHUTDOWN_NAME).exists()
    assert main(["stop", str(data)]) == 1
    assert capsys.readouterr().err == f"kafkalog-broker: no broker runs on {data}\n"


def test_a_note_of_an_earlier_process_is_not_believed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = hold(data / LOCK_NAME, f"pid {bystander.pid}\nstarted 1\n".encode())
    try:
        assert main(["stop", str(data)]) == 1
        assert f"process {bystander.pid}, which cannot be seen from here" in capsys.readouterr().err
        assert bystander.poll() is None
        assert main(["stop", str(data), "--timeout", "0"]) == 1
    finally:
        held.close()
        bystander.kill()
        bystander.communicate()


def test_a_holder_without_a_name_is_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    held = hold(data / LOCK_NAME, b"")
    assert main(["stop", str(data)]) == 1
    held.close()
    assert "whose process is not known" in capsys.readouterr().err


def test_a_broker_that_does_not_stop_in_time_is_reported(
    running: EmbeddedBroker, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("kafkalog_broker.cli.stop.SYSTEM_CLOCK", clock)
    pid, began = running.pid, clock.monotonic()
    with stopped(pid):
        assert main(["stop", str(data), "--timeout", "2.5"]) == 1
    assert 2.5 <= clock.monotonic() - began < 2.6
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"kafkalog-broker: process {pid} is still stopping after 2 s of 2.5 s"
    assert lines[2] == f"kafkalog-broker: process {pid} has not stopped after 2.5 s; it may still do so"
    until(lambda: not running.running)


@pytest.mark.parametrize(
    "arguments", [["/no/such/place"], [".", "--timeout", "soon"], [".", "--timeout", "-1"]]
)
def test_a_misused_stop_exits_with_two(arguments: list[str]) -> None:
    ran = broker_command("stop", *arguments)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("kafkalog-broker")


def test_without_an_argument_it_looks_where_a_broker_without_one_keeps_its_data(tmp_path: Path) -> None:
    ran = broker_command("stop", cwd=tmp_path)
    assert ran.returncode == 2
    assert "kafkalog-data: no such data directory" in ran.stderr
