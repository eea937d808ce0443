"""Clients of Kafka 0.7's time, as npm and PyPI still have them, in processes that are told what to do.

``python -m tests.support.foreign.clients07`` fetches them; `make interop` begins with that.
Those for Python 2 run in Jython, so that no machine needs a Python 2. What else there was of that time is not
run: kafka-rb needs Ruby's own registry, and brod's consumer groups a ZooKeeper client written in C.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.foreign.fetched import DIRECTORY, ROOT, announce, fetched, with_maven

_SOURCES = ROOT / "tests" / "peers" / "clients07"
_ANSWER_SECONDS = 350.0
"""Jython compiles the clients when it first starts, and Spark's first worker the decoder: for minutes, on a
machine that does five other things. Less than a test may take.
"""

_BRODS = ("brod-0.3.2", "brod-0.4.3")
_PACKAGES = ("pykafka-0.1.2", "samsa-0.3.11")
_WHEELS = ("kazoo-2.8.0-py2.py3-none-any.whl", "six-1.16.0-py2.py3-none-any.whl")


class ClientError(Exception):
    """What a client raised; its text begins with the exception's name."""


def node_modules() -> Path:
    """prozess and kafka with what they need. Raises `NotAvailable` without Node, npm or its registry."""
    pins = [_SOURCES / "package.json", _SOURCES / "package-lock.json"]
    # No install scripts: the only one compiles a module that the clients do not get; see clients.js.
    command = ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    fetched("clients07-node", "prozess and kafka of npm", pins, ["node", "--version"], command)
    return DIRECTORY / "clients07-node" / "node_modules"


def python2_packages() -> Path:
    """brod, pykafka and samsa, unpacked. Raises `NotAvailable` without PyPI."""
    pins = [_SOURCES / "requirements.txt", _SOURCES / "requirements-brod-0.3.txt"]
    python = [sys.executable, "-m"]
    downloads = [[*python, "pip", "download", "--quiet", "--no-deps", "-r", pin.name] for pin in pins]
    sources = [[*python, "tarfile", "-e", f"{name}.tar.gz"] for name in (*_BRODS, *_PACKAGES)]
    # Unpacked too, for Jython keeps what it has compiled beside the sources.
    wheels = [[*python, "zipfile", "-e", name, "wheels"] for name in _WHEELS]
    return fetched(
        "clients07-python2", "brod, pykafka and samsa of PyPI", pins, *downloads, *sources, *wheels
    )


def jython() -> Path:
    """The directory with Jython's jar. Raises `NotAvailable` without Java, Maven or its repository."""
    return with_maven("clients07-jython", "Jython", _SOURCES / "pom.xml")


class Driver:
    """*Not thread-safe.* A process with clients in it, which does one thing at a time."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def for_node(cls, directory: Path) -> Driver:
        return cls(
            ["node", "--no-deprecation", _SOURCES / "clients.js", node_modules()], directory / "node.log"
        )

    @classmethod
    def for_python2(cls, directory: Path) -> Driver:
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jython()}/*"]
        packages = python2_packages()
        script = [
            _SOURCES / "clients_python2.py",
            *(packages / name for name in (*_BRODS, *_PACKAGES, "wheels")),
        ]
        return cls([*java, "org.python.util.jython", *script], directory / "python2.log")

    def ask(self, client: str, do: str, **arguments: Any) -> dict[str, Any]:
        """Have a client do something. Raises `ClientError` for what it raises."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"client": client, "do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            self.close()
            raise AssertionError(f"{client} does not {do} {arguments}: {self._tail()}") from None
        assert line, f"{client} has ended the process with {do} {arguments}: {self._tail()}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer

    def end(self, seconds: float) -> None:
        """End the process by the end of its input, or by force after so long; may be called again."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.close()

    def close(self) -> None:
        """End the process; may be called again."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


class Fetched(NamedTuple):
    """What a client makes of a fetch: payloads, and where it would go on."""

    payloads: list[bytes]
    next_offset: int


class Client07(NamedTuple):
    """*Not thread-safe.* One of a driver's clients, at a broker; partition 0 where none is named."""

    driver: Driver
    name: str
    port: int

    def produce(self, topic: str, payloads: Sequence[bytes], partition: int = 0, **more: int) -> None:
        """Nobody says whether it has arrived: see the log's end."""
        self._ask("produce", topic, partition, payloads=[p.hex() for p in payloads], **more)

    def fetch(self, topic: str, offset: int, size: int = 1 << 20, partition: int = 0) -> Fetched:
        answer = self._ask("fetch", topic, partition, offset=offset, size=size)
        return Fetched([bytes.fromhex(payload) for payload in answer["payloads"]], answer["next"])

    def offsets(self, topic: str, time: int, count: int = 1, partition: int = 0) -> list[int]:
        found: list[int] = self._ask("offsets", topic, partition, time=time, count=count)["offsets"]
        return found

    def _ask(self, do: str, topic: str, partition: int, **arguments: Any) -> dict[str, Any]:
        return self.driver.ask(self.name, do, port=self.port, topic=topic, partition=partition, **arguments)


def _fetch_all() -> None:
    """Each by itself, so that one that cannot be had keeps no other away."""
    announce("prozess and kafka of npm", node_modules)
    announce("brod, pykafka and samsa of PyPI", python2_packages)
    announce("Jython", jython)


if __name__ == "__main__":
    _fetch_all()
