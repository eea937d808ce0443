"""A consumer in a process of its own that journals each message as it is given out: ``python -m`` this.

Arguments: ZooKeeper, protocol, consumer id, journal, the session's time in ms. The journal's lines are
``time partition offset next payload``, the time being the machine's monotonic one in seconds. Its first line
is the session's id and password. Ends cleanly on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from tests.support.until import until
from tests.support.zookeeper import PATIENT, PATIENT_MS

TOPIC = "t"
GROUP = "g"


class Delivery(NamedTuple):
    """A line of the journal."""

    at: float
    partition: str
    offset: int
    next_offset: int
    payload: str


class GroupConsumer:
    """*Not thread-safe.* The process, and what it has journalled so far."""

    def __init__(self, zookeeper: str, name: str, directory: Path, session_ms: int = PATIENT_MS) -> None:
        self.name, self.thread = name, f"{GROUP}_{name}-0"
        self._journal = directory / f"{name}.journal"
        self._log = directory / f"{name}.log"
        given = [zookeeper, "0.7", name, str(self._journal), str(session_ms)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", __name__, *given], stderr=log)
        until(lambda: self._journal.exists() and b"\n" in self._journal.read_bytes())

    @property
    def session(self) -> tuple[int, bytes]:
        """Id and password of its first session."""
        number, password = self._journal.read_text().splitlines()[0].split()
        return int(number), bytes.fromhex(password)

    @property
    def losses(self) -> int:
        """How many sessions it has lost: the processes log warnings."""
        return self._log.read_text().count(" is lost")

    @property
    def deliveries(self) -> list[Delivery]:
        """What it was given, in order."""
        # A line that is cut short is of a process that was killed in the middle of writing it.
        lines = [line for line in self._journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        rows = [line.split() for line in lines[1:]]
        return [
            Delivery(float(at), part, int(here), int(there), text) for at, part, here, there, text in rows
        ]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(timeout=180)


def main(zookeeper: str, protocol: str, name: str, journal: str, session_ms: str) -> None:
    properties = {
        "zk.connect": zookeeper, "protocol": protocol, "groupid": GROUP, "consumerid": name,
        **PATIENT, "zookeeper.session.timeout.ms": session_ms,
        "autocommit.interval.ms": 200, "fetcher.backoff.ms": 50, "rebalance.backoff.ms": 200,
    }  # fmt: skip
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ConsumerConnector(properties) as connector:
        # Before the first message, so that the first line is there when the process counts as started.
        number, password = connector._session.credentials
        os.write(file, f"{number} {password.hex()}\n".encode())
        (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
        signal.signal(signal.SIGTERM, lambda *_: stream.close())
        for message, where in stream:
            line = (
                f"{time.monotonic():.6f} {where.broker}-{where.partition} {where.offset} {where.next_offset} "
            )
            os.write(file, line.encode() + message + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
