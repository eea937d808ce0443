"""Apache Kafka of the time before record batches: brokers of 0.8 to 0.10, with ZooKeeper, fetched by Maven.

``python -m tests.support.foreign.old_kafka`` fetches them; `make interop` does so too.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.foreign.fetched import ROOT, announce, fetched
from tests.support.foreign.ports import free_ports

_POM = ROOT / "tests" / "peers" / "old_kafka" / "pom.xml"
_LOG4J = _POM.with_name("log4j.properties")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_START_SECONDS = 120
_STARTED = "], started (kafka.server.KafkaServer)"
_OPENED = ("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED")
"""What they use of Java's own insides, which later Java has closed."""

FORMATS = {"0.8.2.2": 0, "0.9.0.1": 0, "0.10.0.1": 1}
"""The versions that are run, and the message format that each keeps."""


def fetch(version: str) -> Path:
    """The directory with a version's jars. Raises `NotAvailable` without Java, Maven or network."""
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."]
    what = f"Apache Kafka {version}"
    return fetched(
        f"kafka-{version}", what, [_POM], ["java", "-version"], [*copy, f"-Dkafka.version={version}"]
    )


class OldKafka:
    """*Not thread-safe.* A broker of an old version in one process. Topics are made by being written to."""

    def __init__(
        self, version: str, directory: Path, zookeeper: str, *, plain_users: Mapping[str, str] | None = None
    ) -> None:
        """``plain_users``, by name, log in with their passwords by PLAIN at `client_servers`, from 0.10 on.
        Raises `NotAvailable` as `fetch`.
        """
        self.version, self.zookeeper = version, zookeeper
        self.magic = FORMATS[version]
        self._jars = fetch(version)
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self.port, outside = free_ports(2)
        self.bootstrap_servers, self.client_servers = f"127.0.0.1:{self.port}", f"127.0.0.1:{outside}"
        lines = {
            "broker.id": "1",
            "port": str(self.port),
            "host.name": "127.0.0.1",
            "log.dirs": str(directory / "data"),
            "zookeeper.connect": zookeeper,
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "log.retention.hours": "876000",
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._jaas: list[str] = []
        if plain_users is not None:
            lines["listeners"] = (
                f"PLAINTEXT://{self.bootstrap_servers},SASL_PLAINTEXT://{self.client_servers}"
            )
            lines["sasl.enabled.mechanisms"] = "PLAIN"
            users = " ".join(f'user_{name}="{password}"' for name, password in plain_users.items())
            jaas = directory / "jaas.conf"
            jaas.write_text(f"KafkaServer {{ {_PLAIN} required {users}; }};")
            self._jaas = [f"-Djava.security.auth.login.config={jaas}"]
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (directory / "server.properties").write_text(text)

    def start(self) -> OldKafka:
        """Start it, and wait until it says that it serves."""
        assert self._process is None
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_OPENED, *self._jaas]
        command = [*java, f"-Dlog4j.configuration=file:{_LOG4J}", "-cp", f"{self._jars}/*", "kafka.Kafka"]
        log_file = self._directory / "kafka.log"
        with log_file.open("wb") as log:
            properties = str(self._directory / "server.properties")
            self._process = subprocess.Popen([*command, properties], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while _STARTED not in (told := log_file.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"Apache Kafka {self.version} has not started:\n{told[-4000:]}")
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        """End it at once: nothing of it is kept. May be called again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _fetch_all() -> None:
    """Each by itself, so that one that cannot be had keeps no other away."""
    for version in FORMATS:
        announce(f"Apache Kafka {version}", lambda version=version: fetch(version))  # type: ignore[misc]


if __name__ == "__main__":
    _fetch_all()
