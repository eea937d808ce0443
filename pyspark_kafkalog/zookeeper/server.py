"""A ZooKeeper server for laptops and tests: the one in PySpark's jars, in its own process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from pathlib import Path

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.config.properties import format_properties
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.java_runtime import JavaNotFound, ensure_java

# Unlike ZooKeeperServerMain it also removes old snapshots.
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_JVM = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true",
)  # fmt: skip
_JARS = (
    "zookeeper-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j", "netty-", "snappy-java-",
    "metrics-core-", "commons-io-",
)  # fmt: skip
"""The first part of the names of the JARs that it needs. With all of Spark's a start takes a third longer."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_COMMANDS = "srvr,ruok,stat,mntr,envi,cons"
_SECURITY = (
    "secureClientPort", "java.security.auth.login.config", "ssl.clientAuth",
    *(f"ssl.{store}Store.{what}" for store in ("key", "trust") for what in ("location", "password")),
)  # fmt: skip
_WITH_TLS = {
    "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    "ssl.enabledProtocols": "TLSv1.3,TLSv1.2",  # Apache Kafka uses 1.2 with ZooKeeper by default
}
_WITH_LOGINS = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
_CONFIG_NAME = "zookeeper.cfg"
_START_SECONDS = 90.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.03
_PORT_ATTEMPTS = 3
_TAIL_BYTES = 2000

# Kills the server when this process ends in any way: its standard input then closes.
_GUARD = ("/bin/sh", "-c", 'read -r _; kill -9 "$0" 2>/dev/null')


class ZooKeeperNotStarted(KafkaError): ...


class ZooKeeperServer:
    """*Not thread-safe.* A ZooKeeper server that ends with this process. Logs to ``log`` or stderr."""

    def __init__(self, config: ZooKeeperServerConfig, *, log: Path | None = None) -> None:
        self.config = config
        self.data_dir = Path(config.data_dir).expanduser().absolute()
        self._log = log
        self.port = config.client_port  # client port; ``clientPort=0`` chooses one at the first start
        self._secure_port = config.secure_client_port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def connect(self) -> str:
        return f"{self._reached_at}:{self.port}"

    @property
    def secure_connect(self) -> str:
        return f"{self._reached_at}:{self._secure_port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> ZooKeeperServer:
        """Returns when it serves. Raises `ZooKeeperNotStarted`."""
        if self.running:
            raise ZooKeeperNotStarted("this ZooKeeper server is already running")
        command = [_java(), *_JVM, f"-Dlog4j2.configurationFile={_LOGGING}"]
        if self.config.login_config is not None:
            command.append(f"-Djava.security.auth.login.config={Path(self.config.login_config).absolute()}")
        command += ["-cp", _class_path(), _MAIN]
        fixed = self.port != 0
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            # ZooKeeper does not report its port, so we choose one; another process may take it first.
            port = self._free_port(self.port)
            if self.config.secure_client_port >= 0:
                self._secure_port = self._free_port(max(self._secure_port, 0))
            try:
                self._launch([*command, str(self._write_config(port))], port)
            except ZooKeeperNotStarted:
                self.kill()
                if fixed or attempt == _PORT_ATTEMPTS:
                    raise
                continue
            except BaseException:
                self.kill()
                raise
            self.port = port
            break
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as in a crash. `start` restarts it with its data, on the same port."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        guard, self._guard = self._guard, None
        if guard is not None:
            # Before closing its pipe: afterwards the guard could kill another process with that pid.
            guard.kill()
            guard.wait()
            guard.communicate()

    def wait(self, seconds: float) -> int | None:
        """Exit code of the server, or None if it still runs after ``seconds``."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _reached_at(self) -> str:
        host = self.config.client_port_address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"[{host}]" if ":" in host else host

    def _free_port(self, port: int) -> int:
        """``port`` or a free one; fails if something already listens, as it would answer in place of ours."""
        host = self.config.client_port_address
        try:
            family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                return int(probe.getsockname()[1])
        except OSError as e:
            raise ZooKeeperNotStarted(
                f"ZooKeeper cannot listen on {host}:{port} (clientPortAddress, clientPort): {e.strerror or e}"
            ) from e

    def _write_config(self, port: int) -> Path:
        given = self.config.as_properties()
        config = {name: text for name, text in given.items() if name not in _SECURITY}
        if self.config.secure_client_port >= 0:
            config |= {name: text for name, text in given.items() if name.startswith("ssl.")}
            config |= _WITH_TLS | {
                "secureClientPort": str(self._secure_port),
                "secureClientPortAddress": self.config.client_port_address,
            }
        if self.config.login_config is not None:
            config |= _WITH_LOGINS
        config |= {
            "dataDir": str(self.data_dir),
            "clientPort": str(port),
            "admin.enableServer": "false",
            "4lw.commands.whitelist": _COMMANDS,
        }
        path = self.data_dir / _CONFIG_NAME
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)  # may hold key store passwords
            path.write_text(format_properties(config), encoding="utf-8")
        except OSError as e:
            raise ZooKeeperNotStarted(f"dataDir {self.data_dir} cannot be used: {e.strerror or e}") from e
        return path

    def _launch(self, command: list[str], port: int) -> None:
        with self._log.open("ab") if self._log is not None else contextlib.nullcontext() as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log or 2, stderr=log,
                start_new_session=True,  # Ctrl-C must not reach it; we stop it ourselves
            )  # fmt: skip
        self._guard = subprocess.Popen(
            [*_GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = SYSTEM_CLOCK.monotonic() + _START_SECONDS
        while not self._serves(port):
            code = self.wait(_LOOK_SECONDS)
            if code is not None:
                raise ZooKeeperNotStarted(f"ZooKeeper ended with exit code {code}{self._tail()}")
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise ZooKeeperNotStarted(f"ZooKeeper is not ready after {_START_SECONDS:g} s{self._tail()}")

    def _serves(self, port: int) -> bool:
        try:
            with socket.create_connection((self._reached_at.strip("[]"), port), timeout=1) as connection:
                # ruok works as soon as the port is open, before sessions do.
                connection.sendall(b"srvr")
                with connection.makefile("rb") as answer:
                    return b"\nMode: " in answer.read()
        except OSError:
            return False

    def _tail(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        text = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return f": {text}" if text else ""


def _java() -> str:
    try:
        home = ensure_java() or os.environ.get("JAVA_HOME")
    except JavaNotFound as e:
        raise ZooKeeperNotStarted(str(e).replace("Spark", "ZooKeeper", 1)) from e
    return str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        jars = Path(place) / "jars"
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return os.pathsep.join(str(jar) for jar in sorted(jars.iterdir()) if jar.name.startswith(_JARS))
    raise ZooKeeperNotStarted(
        "there is no ZooKeeper among PySpark's jars: is pyspark (not pyspark-client) installed? "
        "pip install 'pyspark-kafkalog[spark]'"
    )
