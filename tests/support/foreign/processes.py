"""Today's clients of other languages, each in processes that are told by arguments what to do.

``python -m tests.support.foreign.processes`` fetches and builds them; `make interop` does so too.

What the programs in ``tests/peers/clients`` do, and print in lines; the end of their input ends them:

* ``member SERVERS GROUP TOPIC``: reads as a member, and commits what it has printed:
  ``holds PARTITION ...`` whenever that changes, ``read PARTITION OFFSET VALUE``
* ``copy SERVERS GROUP FROM TO ID``: puts each record of a topic into the same partition of another, in
  transactions that have the group's offsets with them: ``copied COUNT`` in all
* ``admin SERVERS TOPIC GROUP``: makes ``TOPIC-new``, describes a group, deletes what is before offset 3 in
  partition 0: ``partitions COUNT``, ``group STATE MEMBERS``, ``start OFFSET``
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.foreign.apache_kafka import QUICK
from tests.support.foreign.fetched import ROOT, announce, fetched

_SOURCES = ROOT / "tests" / "peers" / "clients"
_KAFKA = "-Dkafka.version=2.8.2"


class Client(NamedTuple):
    """One client: its name and version, and the start of its command. ``command`` raises `NotAvailable`."""

    name: str
    command: Callable[[], list[str]]


def _kafkajs() -> list[str]:
    pins = [_SOURCES / "package.json", _SOURCES / "package-lock.json"]
    installing = ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    directory = fetched("clients-node", "kafkajs of npm", pins, ["node", "--version"], installing)
    return ["node", str(_SOURCES / "client.js"), str(directory / "node_modules")]


def _franz_go() -> list[str]:
    pins = [_SOURCES / name for name in ("go.mod", "go.sum", "main.go")]
    building = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", "client", "."]
    return [str(fetched("clients-go", "franz-go of Go's module proxy", pins, building) / "client")]


def _java() -> list[str]:
    pins = [ROOT / "tests" / "peers" / "old_java" / "pom.xml", _SOURCES / "Peer.java"]
    copying = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=.", _KAFKA]
    compiling = ["javac", "-Xlint:all,-deprecation", "-Werror", "-cp", "*", "Peer.java"]
    directory = fetched("clients-java", "Kafka's clients of 2.8.2", pins, copying, compiling)
    return ["java", *QUICK, "-cp", f"{directory}/*:{directory}", "Peer"]


CLIENTS = (Client("kafkajs", _kafkajs), Client("franz-go", _franz_go), Client("Java 2.8", _java))


class Running:
    """*Thread-safe: the lines are read by a thread of its own.* A client's process, and what it has said."""

    def __init__(self, client: Client, log: Path, *words: str) -> None:
        """Its errors go to the end of ``log``. Raises `NotAvailable`."""
        self.lines: list[str] = []
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*client.command(), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, kind: str) -> list[list[str]]:
        """The words after ``kind`` of all lines that begin with it."""
        found = [line.split() for line in list(self.lines)]
        return [words[1:] for words in found if words and words[0] == kind]

    def held(self) -> list[int]:
        """The partitions that a member has."""
        said = self.said("holds")
        return [int(word) for word in said[-1]] if said else []

    def send_signal(self, number: int) -> None:
        """Nothing once it has ended."""
        self._process.send_signal(number)

    def leave(self, seconds: float = 60.0) -> None:
        """End its input and wait until it has ended. It must do so, and without an error."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(seconds) == 0, self.errors()

    def wait(self, seconds: float = 60.0) -> None:
        """Until it has ended by itself; without an error."""
        assert self._process.wait(seconds) == 0, self.errors()
        self._reader.join()

    def errors(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it by force; may be called again."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)


def _fetch_all() -> None:
    """Each by itself, so that one that cannot be had keeps no other away."""
    for client in CLIENTS:
        announce(client.name, client.command)


if __name__ == "__main__":
    _fetch_all()
