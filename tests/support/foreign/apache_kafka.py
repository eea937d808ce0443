"""Apache Kafka itself, fetched by Maven: its tools, and a broker of one node, with ZooKeeper or without.

``python -m tests.support.foreign.apache_kafka`` fetches it; `make interop` begins with that.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_kafkalog.types import encode_id
from tests.support.class_archive import archive_in, options_that_make, options_with
from tests.support.foreign.fetched import DIRECTORY, ROOT, announce, with_maven
from tests.support.foreign.ports import free_ports

POM = ROOT / "tests" / "peers" / "pom.xml"
WHAT = "Apache Kafka"

_START_SECONDS = 120
_TOOL_SECONDS = 120
_LOGGED = re.compile(r"SLF4J:|\[[^]]*\] (TRACE|DEBUG|INFO|WARN) ")
_STARTED = re.compile(r"Kafka Server started|\[KafkaServer id=\d+\] started")
"""Without ZooKeeper, and with it."""

VERSIONS = (None, "4.1.1")
"""Those of most tests, as `fetch` takes them."""

QUICK = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a Java that starts soon and takes little, for tests."""

AS_SHIPPED = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
              "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip
"""Those of Kafka's own start script, for what is measured."""


def fetch(version: str | None = None) -> Path:
    """The directory with Kafka's jars, fetched unless they are there; without a version, the tests' own.

    Raises:
        NotAvailable: no Java, no Maven, or its repository cannot be reached.
    """
    if version is None:
        return with_maven("kafka", WHAT, POM)
    return with_maven(f"kafka-{version}", f"{WHAT} {version}", POM, f"-Dkafka.version={version}")


def java(jars: Path, main: str, *arguments: str | Path, options: Sequence[str] = QUICK) -> list[str]:
    """The command that runs one of Kafka's programs. Where its options begin with `QUICK`, it uses the
    archive of its classes.
    """
    if tuple(options[: len(QUICK)]) == QUICK:
        options = (*options, *options_with(_archive(jars)))
    return ["java", *options, "-cp", f"{jars}/*", main, *map(str, arguments)]


def _archive(jars: Path) -> Path:
    return archive_in(DIRECTORY, jars, flags=" ".join(QUICK))


def _make_archive(jars: Path) -> None:
    """Unless it is there: of the classes of a broker that starts and stops."""
    archive = _archive(jars)
    if archive.exists():
        return
    beside = archive.with_suffix(f".{os.getpid()}")
    making = (*options_that_make(beside), *QUICK)  # QUICK is not first: no archive is used
    with tempfile.TemporaryDirectory() as directory, suppress(AssertionError):  # tests tell what is wrong
        ApacheKafka(jars, Path(directory), options=making).start().stop()
    if beside.exists():  # a Java without an archive of its own writes none
        beside.replace(archive)


def run_tool(jars: Path, main: str, *arguments: str | Path, options: Sequence[str] = QUICK) -> str:
    """What one of Kafka's tools says, its complaints on standard error behind the rest; it must end well."""
    command = java(jars, main, *arguments, options=options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    complaints = [line for line in done.stderr.splitlines(keepends=True) if not _LOGGED.match(line)]
    return done.stdout + "".join(complaints)


class ApacheKafka:
    """*Not thread-safe.* A broker in one process, with its controller in it unless there is ZooKeeper.

    Its data is in ``data_dir``.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        zookeeper: str | None = None,
        options: Sequence[str] = QUICK,
        scram_users: Sequence[str] = (),
        **properties: str,
    ) -> None:
        """``properties`` with underscores for dots are added to those that a single node needs; ``options``
        are Java's. ``scram_users``, without ZooKeeper: `SCRAM-SHA-256=[name=n,password=p]`.
        """
        self._jars, self._options = jars, options
        self._process: subprocess.Popen[bytes] | None = None
        self.data_dir = directory / "data"
        self.log_file = directory / "kafka.log"
        self._properties = directory / "server.properties"
        port, controller = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        listener = f"PLAINTEXT://{self.bootstrap_servers}"
        with_zookeeper = {"broker.id": "1", "zookeeper.connect": str(zookeeper), "listeners": listener}
        alone = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{listener},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        lines = {
            **(alone if zookeeper is None else with_zookeeper),
            "advertised.listeners": listener,
            "log.dirs": str(self.data_dir),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",
        } | {name.replace("_", "."): value for name, value in properties.items()}
        directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        if zookeeper is not None:
            return
        cluster = encode_id(uuid.UUID(int=uuid.uuid4().int >> 8))  # begins with A: a dash would be an option
        users = [argument for user in scram_users for argument in ("--add-scram", user)]
        run_tool(jars, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._properties, *users)

    def start(self) -> ApacheKafka:
        """Start it, and wait until it says that it serves."""
        assert self._process is None
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                java(self._jars, "kafka.Kafka", self._properties, options=self._options),
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _STARTED.search(self.log_file.read_text(errors="replace")):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = self.log_file.read_text(errors="replace")[-4000:]
                self.stop()
                raise AssertionError(f"Apache Kafka has not started:\n{tail}")
            time.sleep(0.1)
        return self

    @property
    def pid(self) -> int:
        """Its process; it must have been started."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop it gracefully; may be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Let it die at once; `start` brings it back on the same port and data."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.wait()


def _fetch_and_prepare() -> None:
    for version in VERSIONS:
        _make_archive(fetch(version))


if __name__ == "__main__":
    announce(WHAT, _fetch_and_prepare)
