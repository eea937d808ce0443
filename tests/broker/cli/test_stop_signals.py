"""What signals do while the broker is busy starting or stopping, shown with one that sends them to itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import SECONDS

ROOT = Path(__file__).resolve().parents[3]

BUSY_BROKER = """
import signal, sys
import kafkalog_broker.cli.start, kafkalog_broker.server.broker

def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()

class Clock:
    now = 100.0

    def monotonic(self):
        return self.now

class BusyBroker:
    ports, cluster_id = {"PLAINTEXT": 9092}, "abc"

    def __init__(self, config):
        pass

    def advertised(self):
        return {"PLAINTEXT": ("127.0.0.1", 9092)}

    def start(self):
        say("starting")
        signal.raise_signal(signal.SIGTERM)

    def stop(self):
        say("stopping")
        if sys.argv[1] == "slowly":
            clock.now += 0.9
            signal.raise_signal(signal.SIGINT)
            say("still stopping")
            clock.now += 0.2
            signal.raise_signal(signal.SIGINT)
            say("not reached")

clock = kafkalog_broker.cli.start.SYSTEM_CLOCK = Clock()
kafkalog_broker.server.broker.Broker = BusyBroker
from kafkalog_broker.cli import main
sys.exit(main(["start", "--log-level", "ERROR"]))
"""


def run(how: str) -> tuple[int, list[str]]:
    """Exit code and lines of a broker that is asked to stop while it starts."""
    ran = subprocess.run(
        [sys.executable, "-c", BUSY_BROKER, how],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return ran.returncode, [line.partition(" on ")[0] for line in ran.stdout.splitlines()]


def test_a_signal_during_the_start_stops_a_broker_that_has_started() -> None:
    assert run("quickly") == (0, ["starting", "broker 0 listens", "stopping"])


def test_one_wish_may_come_twice_and_another_second_later_it_does_not_wait_for_a_slow_stop() -> None:
    code, lines = run("slowly")
    assert (code, lines[2:]) == (-signal.SIGINT, ["stopping", "still stopping"])
