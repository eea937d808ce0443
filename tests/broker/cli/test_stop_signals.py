"""What signals do while the broker is busy starting or stopping, shown with one that takes its time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SLOW_BROKER = """
import sys, time
import broker.server.broker

class SlowBroker:
    ports, cluster_id = {"PLAINTEXT": 9092}, "abc"

    def __init__(self, config):
        pass

    def advertised(self):
        return {"PLAINTEXT": ("127.0.0.1", 9092)}

    def start(self):
        self._slowly("starting", float(sys.argv[1]))

    def stop(self):
        self._slowly("stopping", float(sys.argv[2]))

    def _slowly(self, word, seconds):
        sys.stdout.write(word + "\\n")
        sys.stdout.flush()
        time.sleep(seconds)

broker.server.broker.Broker = SlowBroker
from broker.cli import main
sys.exit(main(["start", "--log-level", "ERROR"]))
"""


@pytest.fixture
def slow() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def run(
    slow: list[subprocess.Popen[str]], start_seconds: float, stop_seconds: float
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_BROKER, str(start_seconds), str(stop_seconds)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    slow.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_signal_during_a_slow_start_stops_a_broker_that_has_started(
    slow: list[subprocess.Popen[str]],
) -> None:
    process = run(slow, 0.3, 0)
    assert line(process) == "starting"
    process.terminate()
    assert line(process).startswith("broker 0 listens on ")
    assert line(process) == "stopping"
    assert process.wait(10) == 0


def test_a_second_signal_does_not_wait_for_a_slow_stop(slow: list[subprocess.Popen[str]]) -> None:
    process = run(slow, 0, 60)
    assert line(process) == "starting"
    line(process)
    process.send_signal(signal.SIGINT)
    assert line(process) == "stopping"
    process.send_signal(signal.SIGINT)  # the same wish, sent twice
    time.sleep(1.1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT
