"""``stop`` ends the broker of a directory, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.cli import main
from broker.disk.data_directory import CLEAN_SHUTDOWN_NAME, LOCK_NAME
from broker.disk.process_lock import hold
from tests.support.stopping import stop_process
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "broker"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def running(data: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker on the directory, started as users start it."""
    process = subprocess.Popen(
        [*COMMAND, "start", "--override", f"log.dirs={data}", "--override", "listeners=PLAINTEXT://127.0.0.1:0"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "listens on" in process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_broker_is_stopped_gracefully_and_waited_for(
    running: subprocess.Popen[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Somebody must take note of its end, or it stays a zombie; `stop` does not wait for that.
    assert main(["stop", str(data)]) == 0
    said = capsys.readouterr()
    assert said.out == f"the broker on {data} has stopped\n"
    assert said.err == f"kafkalog-broker: asked process {running.pid}, the broker on {data}, to stop\n"
    assert running.wait(60) == 0
    assert (data / CLEAN_SHUTDOWN_NAME).exists()
    assert main(["stop", str(data)]) == 1
    assert capsys.readouterr().err == f"kafkalog-broker: no broker runs on {data}\n"


@pytest.mark.usefixtures("running")
def test_the_properties_file_says_where_the_broker_is(data: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    other = tmp_path / "other"
    other.mkdir()
    properties.write_text(f"log.dirs={other},{data}\n")
    assert main(["stop", str(properties)]) == 0


def test_an_embedded_broker_is_stopped_too(data: Path) -> None:
    with broker.start_broker(data_dir=data) as running:
        assert main(["stop", str(data)]) == 0
        # Its lock is free, which is what counts; the process has an exit code a moment later.
        until(lambda: not running.running)


def test_after_a_kill_nobody_is_signalled(
    running: subprocess.Popen[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.kill()
    running.wait()
    assert f"pid {running.pid}\n" in (data / LOCK_NAME).read_text(), "the note outlives its writer"
    assert main(["stop", str(data)]) == 1
    assert "no broker runs on" in capsys.readouterr().err


def test_a_note_of_an_earlier_process_is_not_believed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held = hold(data / LOCK_NAME, f"pid {bystander.pid}\nstarted 1\n".encode())
    try:
        assert main(["stop", str(data)]) == 1
        assert f"process {bystander.pid}, which cannot be seen from here" in capsys.readouterr().err
        assert bystander.poll() is None
        assert main(["stop", str(data), "--timeout", "0"]) == 1
    finally:
        held.close()
        bystander.kill()
        bystander.wait()


def test_a_holder_without_a_name_is_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    held = hold(data / LOCK_NAME, b"")
    assert main(["stop", str(data)]) == 1
    held.close()
    assert "whose process is not known" in capsys.readouterr().err


def test_a_broker_that_does_not_stop_in_time_is_reported(
    running: subprocess.Popen[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_process(running.pid)
    began = time.monotonic()
    assert main(["stop", str(data), "--timeout", "2.5"]) == 1
    assert 2.5 <= time.monotonic() - began < 10
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"kafkalog-broker: process {running.pid} is still stopping after 2 s of 2.5 s"
    assert (
        lines[2] == f"kafkalog-broker: process {running.pid} has not stopped after 2.5 s; it may still do so"
    )
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait(10) == 0


@pytest.mark.parametrize(
    "arguments", [["/no/such/place"], [".", "--timeout", "soon"], [".", "--timeout", "-1"]]
)
def test_a_misused_stop_exits_with_two(arguments: list[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "stop", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("kafkalog-broker")
    assert "Traceback" not in done.stderr


def test_without_an_argument_it_looks_where_a_broker_without_one_keeps_its_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "stop"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "kafkalog-data: no such data directory" in done.stderr
