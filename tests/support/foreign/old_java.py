"""Kafka's own Java clients of old versions, each in a process that is told what to do.

``python -m tests.support.foreign.old_java`` fetches them; `make interop` does so too. They are
fetched by Maven and compiled against once, which takes a JDK.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.foreign.fetched import ROOT, announce, fetched
from tests.support.foreign.foreign_face import Message

_SOURCES = ROOT / "tests" / "peers" / "old_java"
_MAIN = "OldClient"

FORMATS = {"0.9.0.1": 0, "0.10.2.2": 1, "0.11.0.3": 2}
"""The versions that are run, and the message format that each writes and reads at most."""


def classes(version: str) -> Path:
    """Where a version's jars and our program are. Raises `NotAvailable` without JDK, Maven or network."""
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."]
    compiling = ["javac", "-Xlint:all", "-Werror", "-cp", "*", f"{_MAIN}.java"]
    return fetched(
        f"kafka-clients-{version}",
        f"Kafka's clients of {version}",
        [_SOURCES / "pom.xml", _SOURCES / f"{_MAIN}.java"],
        ["java", "-version"],
        [*copy, f"-Dkafka.version={version}"],
        compiling,
    )


class OldJava:
    """*Not thread-safe.* One version's clients, at one cluster, in one process for all that is asked."""

    def __init__(
        self, version: str, servers: str, log: Path, properties: Mapping[str, str] | None = None
    ) -> None:
        """``properties`` of both clients, on top. Raises `NotAvailable` as `classes`."""
        self.name = f"Java {version}"
        self.magic = FORMATS[version]
        self._log, self._servers = log, servers
        directory = classes(version)
        given = [f"{name}={value}" for name, value in (properties or {}).items()]
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*java, "-cp", f"{directory}/*:{directory}", _MAIN, servers, *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        batch: Sequence[Message],
        codec: str,
        *,
        idempotent: bool,
    ) -> list[int]:
        assert (servers, idempotent) == (self._servers, False)
        lines = [_line(m._replace(headers=m.headers if self.magic == 2 else ())) for m in batch]
        (offsets,) = self._ask(1, f"produce {topic} {partition} {codec} {len(batch)}", *lines)
        return [int(word) for word in offsets.split()]

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        assert servers == self._servers
        found = [line.split() for line in self._ask(count, f"consume {topic} {partition} {offset} {count}")]
        assert [int(words[0]) for words in found] == list(range(offset, offset + count))
        return [_message(words[1:]) for words in found]

    def close(self) -> None:
        """End the process; may be called again."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, answers: int, *lines: str) -> list[str]:
        """So many lines of answer. The program ends itself when it waits in vain."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()
        found = []
        while len(found) < answers:
            line = self._process.stdout.readline()
            assert line, (
                f"{self.name} has ended with {lines[0]}: {self._log.read_text(errors='replace')[-2000:]}"
            )
            found.append(line)
        return found


def _line(m: Message) -> str:
    headers = [f"{_text(name.encode())}={_text(value)}" for name, value in m.headers]
    return " ".join([_text(m.key), _text(m.value), str(m.timestamp), *headers])


def _message(words: Sequence[str]) -> Message:
    key, value, time, *headers = words
    pairs = [header.split("=") for header in headers]
    named = tuple(((_bytes(name) or b"").decode(), _bytes(held)) for name, held in pairs)
    return Message(_bytes(value), _bytes(key), int(time), named)


def _text(data: bytes | None) -> str:
    return "-" if data is None else f"x{data.hex()}"


def _bytes(word: str) -> bytes | None:
    return None if word == "-" else bytes.fromhex(word[1:])


def _fetch_all() -> None:
    """Each by itself, so that one that cannot be had keeps no other away."""
    for version in FORMATS:
        announce(f"Kafka's clients of {version}", lambda version=version: classes(version))  # type: ignore[misc]


if __name__ == "__main__":
    _fetch_all()
