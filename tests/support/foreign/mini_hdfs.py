"""An HDFS of one process, NameNode and DataNode of Apache Hadoop, fetched by Maven.

``python -m tests.support.foreign.mini_hdfs`` fetches it; `make interop` does so too.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.support.foreign.fetched import ROOT, announce, fetched
from tests.support.foreign.ports import free_ports

_SOURCES = ROOT / "tests" / "peers" / "hdfs"
_MAIN = "MiniHdfs"
_START_SECONDS = 120


def fetch() -> Path:
    """The directory of Hadoop's jars and the program.

    Raises `NotAvailable` without Java, Maven or network.
    """
    copying = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."]
    compiling = ["javac", "-Xlint:all", "-Werror", "-cp", "*", f"{_MAIN}.java"]
    pins = [_SOURCES / "pom.xml", _SOURCES / f"{_MAIN}.java"]
    return fetched("hdfs", "Hadoop's MiniDFSCluster", pins, ["java", "-version"], copying, compiling)


class MiniHdfs:
    """*Not thread-safe.* An HDFS below a directory; it can be killed and started again with what it has."""

    def __init__(self, directory: Path) -> None:
        """Raises `NotAvailable` as `fetch`."""
        self._jars = fetch()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)
        self.url = f"hdfs://127.0.0.1:{self.port}"

    def start(self) -> MiniHdfs:
        """Start it, and wait until it says that it serves."""
        log, out = (self._directory / name for name in ("hdfs.log", "hdfs.out"))
        with log.open("ab") as errors, out.open("wb") as told:
            self._process = subprocess.Popen(
                ["java", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                 "-cp", f"{self._jars}/*:{self._jars}", _MAIN, str(self._directory / "data"), str(self.port)],
                stdin=subprocess.PIPE, stdout=told, stderr=errors, cwd=self._directory,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while b"serving" not in out.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"HDFS has not started:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        """End it at once; may be called again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


if __name__ == "__main__":
    announce("Hadoop's HDFS", fetch)
