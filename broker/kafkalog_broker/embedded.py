"""A broker or cluster in processes of their own, for tests, notebooks and laptops.

The parent writes the configuration as one line to the child's standard input; end of stream means that the
parent is gone. The child answers with one line: its ports and status URL once it serves, or why it cannot.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pyspark_kafkalog.config.definition import describe, nearest
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    from pyspark_kafkalog.zookeeper.server import ZooKeeperServer

_HOST = "127.0.0.1"
_LISTENERS = "listeners"
_METRICS_LISTENER = "metrics.listener"
_ANY_PORT = re.compile(rf"\b{re.escape(_HOST)}:0\b")
_LOG_DIRS = ("log.dirs", "log.dir")
_CHILD = "from kafkalog_broker.embedded import run_child; run_child()"
_RETENTION_TIMES = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_INITIAL_DELAY = "group.initial.rebalance.delay.ms"
_STOP_SECONDS = 60.0
_CLUSTER_TICK_MS = 200
_CLUSTER_SESSION_MS = 4000
"""Time after which a killed broker of a test cluster counts as gone."""
_CLUSTER_MAX_SESSION_MS = 3_600_000
"""Longer sessions are allowed on request."""

_OF_ONE_BROKER = ("node.id", "broker.id", "brokerid", "zookeeper.connect", "zk.connect")
_LOG_TAIL_BYTES = 4000


class BrokerNotStarted(KafkaError):
    """The broker process ended instead of serving; the message has its reason."""


class EmbeddedBroker:
    """*Not thread-safe: used by the thread that started it.* A broker process and its data directory.

    It logs warnings to ``log_file`` there. `stop` removes only a temporary data directory.
    """

    def __init__(self, properties: Mapping[str, str], data_dir: Path, temporary: Path | None) -> None:
        self._properties = dict(properties)
        self._temporary = temporary
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._status_url: str | None = None
        self._reserved: list[int] = []
        weakref.finalize(self, _close_all, self._reserved)
        for name in (_LISTENERS, _METRICS_LISTENER):
            # Elsewhere two sockets cannot share a port like this; the broker then chooses one.
            if name in self._properties and sys.platform == "linux":
                self._properties[name] = _ANY_PORT.sub(self._reserve, self._properties[name])
        self.data_dir = data_dir
        self.log_file = data_dir / "broker.log"

    @property
    def host(self) -> str:
        return _HOST

    @property
    def port(self) -> int:
        """Port of its first listener, reserved while the broker is stopped and kept by `restart`."""
        return next(iter(self._ports.values()), 0)

    def port_of(self, listener: str) -> int:
        """Port of the named listener, such as ``PLAINTEXT``. Raises `InvalidConfig`: unknown."""
        try:
            return self._ports[listener]
        except KeyError:
            raise InvalidConfig(f"listeners={self._properties[_LISTENERS]} has none of {listener}") from None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, for clients and Spark's ``kafka.bootstrap.servers``."""
        return f"{self.host}:{self.port}"

    @property
    def status_url(self) -> str:
        """URL of the status page, kept by `restart`. Raises `InvalidConfig`: no ``metrics.listener``."""
        if self._status_url is None:
            raise InvalidConfig(
                f"the broker was started without {_METRICS_LISTENER}; "
                f'start_broker({{"{_METRICS_LISTENER}": "{_HOST}:0"}}) serves its status on a free port'
            )
        return self._status_url

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> EmbeddedBroker:
        """Start the process and wait until it serves. Raises `BrokerNotStarted` with its reason."""
        if self.running:
            raise BrokerNotStarted("the broker runs already")
        properties = self._properties | {"log.dirs": str(self.data_dir)}
        if self._ports:
            kept = [f"{listener}://{_HOST}:{port}" for listener, port in self._ports.items()]
            properties[_LISTENERS] = ",".join(kept)
        if self._status_url is not None:
            properties[_METRICS_LISTENER] = self._status_url.partition("://")[2]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # keep Ctrl-C in a notebook or test from the broker
            )
        message = {"properties": properties, "remove": str(self._temporary) if self._temporary else None}
        stdin, stdout = _pipes(process)
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; the line below has the reason
        line = stdout.readline().decode().strip()
        if not line.startswith("{"):
            self._reap(process)
            raise BrokerNotStarted(line or f"the broker ended at once: {self._log_tail()}")
        answer = json.loads(line)
        self._process, self._ports, self._status_url = process, answer["ports"], answer["status_url"]
        return self

    def stop(self) -> None:
        """Stop gracefully and remove a temporary data directory. May be repeated."""
        self._end(signal.SIGTERM)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def kill(self) -> None:
        """Send SIGKILL; the data stays for `restart`."""
        self._end(signal.SIGKILL)

    def restart(self) -> EmbeddedBroker:
        """Stop if running, then start on the same data and port. Raises as `start`."""
        self._end(signal.SIGTERM)
        return self.start()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _reserve(self, _any: object) -> str:
        """Reserve a free port by binding it; the broker may still listen there thanks to ``SO_REUSEADDR``."""
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((_HOST, 0))
            port = bound.getsockname()[1]
            self._reserved.append(bound.detach())
        return f"{_HOST}:{port}"

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in _pipes(process):
            pipe.close()

    def _log_tail(self) -> str:
        data = self.log_file.read_bytes() if self.log_file.exists() else b""
        return data[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "without a word"


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def start_broker(
    properties: Mapping[str, object] | None = None, *, data_dir: str | Path | None = None, **overrides: object
) -> EmbeddedBroker:
    """Start a broker on a free port of 127.0.0.1; use it as a context manager, or call `stop`.

    ``properties`` and ``overrides`` are those of ``server.properties``: ``**{"log.segment.bytes": 1024}``.
    Retention is off unless ``log.retention.*`` is set, since test data is often old.
    ``group.initial.rebalance.delay.ms`` is 0, so a group's first member gets its partitions at once. Without
    ``data_dir`` the data is temporary. The process ends with this one.

    Raises:
        BrokerNotStarted: the broker rejected its configuration or directory.
        InvalidConfig: a property is unknown, or sets the directory.
    """
    given = {**(properties or {}), **overrides}
    merged = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in given.items()}
    _check_known(merged)
    if any(name in merged for name in _LOG_DIRS):
        raise InvalidConfig("an embedded broker's directory is given as data_dir=, not as log.dirs")
    merged.setdefault(_LISTENERS, f"PLAINTEXT://{_HOST}:0")
    if not any(name in merged for name in _RETENTION_TIMES):
        merged[_RETENTION_TIMES[0]] = "-1"
    merged.setdefault(_INITIAL_DELAY, "0")
    temporary = None
    if data_dir is None:
        temporary = Path(tempfile.mkdtemp(prefix="kafkalog-"))
        data_dir = temporary / "data"
    path = Path(data_dir).absolute()
    path.mkdir(parents=True, exist_ok=True)
    broker = EmbeddedBroker(merged, path, temporary)
    try:
        return broker.start()
    except BaseException:
        broker.stop()
        raise


class EmbeddedCluster:
    """*Not thread-safe: used by the thread that started it.* Broker processes that form a cluster, with their
    own ZooKeeper server. ``brokers`` by id, from 1: ``kill`` and ``restart`` them individually.
    """

    def __init__(self, zookeeper: ZooKeeperServer, data_dir: Path, *, temporary: bool) -> None:
        self.zookeeper = zookeeper
        self.data_dir = data_dir
        self.brokers: dict[int, EmbeddedBroker] = {}
        self._temporary = temporary

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, for clients and Spark's ``kafka.bootstrap.servers``."""
        return ",".join(each.bootstrap_servers for each in self.brokers.values())

    @property
    def zookeeper_connect(self) -> str:
        return self.zookeeper.connect

    def stop(self) -> None:
        """Stop all brokers, then ZooKeeper, and remove temporary data. May be repeated."""
        for each in self.brokers.values():
            each.stop()
        self.zookeeper.stop()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_cluster(
    count: int = 3,
    properties: Mapping[str, object] | None = None,
    *,
    data_dir: str | Path | None = None,
    **overrides: object,
) -> EmbeddedCluster:
    """Start a cluster of ``count`` brokers, with ids from 1; use it as a context manager, or call `stop`.

    ``properties``, ``overrides`` and ``data_dir`` apply to each broker as in `start_broker`; with port 0 in
    ``metrics.listener`` each has its own `EmbeddedBroker.status_url`. ZooKeeper needs Java and pyspark's
    jars.

    Raises:
        BrokerNotStarted, ZooKeeperNotStarted: the message says why; nothing keeps running.
        InvalidConfig: a property is unknown, or can only be set per broker.
    """
    from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
    from pyspark_kafkalog.zookeeper.server import ZooKeeperServer

    merged = {**(properties or {}), **overrides}
    own = sorted(set(merged).intersection(_OF_ONE_BROKER))
    if own or count < 1:
        wrong = f"{own[0]} is each broker's own" if own else f"a cluster has at least 1 broker, not {count}"
        raise InvalidConfig(f"start_cluster: {wrong}")
    path = Path(tempfile.mkdtemp(prefix="kafkalog-") if data_dir is None else data_dir).absolute()
    path.mkdir(parents=True, exist_ok=True)
    settings = ZooKeeperServerConfig(
        data_dir=str(path / "zookeeper"),
        client_port=0,
        tick_time_ms=_CLUSTER_TICK_MS,
        max_session_timeout_ms=_CLUSTER_MAX_SESSION_MS,
    )
    zookeeper = ZooKeeperServer(settings, log=path / "zookeeper.log")
    cluster = EmbeddedCluster(zookeeper, path, temporary=data_dir is None)
    merged.setdefault("zookeeper.session.timeout.ms", _CLUSTER_SESSION_MS)
    try:
        zookeeper.start()
        for number in range(1, count + 1):
            given = {**merged, "node.id": number, "zookeeper.connect": zookeeper.connect}
            cluster.brokers[number] = start_broker(given, data_dir=path / f"broker-{number}")
    except BaseException:
        cluster.stop()
        raise
    return cluster


def run_child() -> None:
    """Main function of the child: read configuration, report ports, serve until stopped or orphaned."""
    import logging  # imports here: the parent needs none of them

    from kafkalog_broker.config.broker_config import BrokerConfig
    from kafkalog_broker.network.socket_server import share_the_interpreter
    from kafkalog_broker.scheduler import next_of
    from kafkalog_broker.server.broker import Broker, starting

    share_the_interpreter()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.put("signal"))
    order = json.loads(sys.stdin.buffer.readline() or b"{}")
    try:
        config = BrokerConfig.load(None, order.get("properties", {}))
        with starting():
            broker = Broker(config)
            broker.start()
    except KafkaError as e:
        os.write(1, f"{e}\n".encode())
        sys.exit(2)

    def watch_parent() -> None:
        sys.stdin.buffer.read()
        ends.put("orphaned")

    threading.Thread(target=watch_parent, name="parent-watch", daemon=True).start()
    answer = {"ports": broker.ports, "status_url": broker.status_url}
    os.write(1, json.dumps(answer).encode() + b"\n")
    reason = next_of(ends)
    broker.stop()
    if reason == "orphaned" and order.get("remove"):
        shutil.rmtree(order["remove"], ignore_errors=True)
    # Exit directly: a thread blocks in a read of stdin, and interpreter shutdown would wait for its lock.
    logging.shutdown()
    os._exit(0)


def _environment() -> dict[str, str]:
    packages = (sys.modules[name] for name in ("kafkalog_broker", "pyspark_kafkalog"))
    roots = [str(Path(str(package.__file__)).resolve().parents[1]) for package in packages]
    paths = [*roots, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise BrokerNotStarted("the broker was started without pipes")
    return process.stdin, process.stdout


def _check_known(names: Iterable[str]) -> None:
    from kafkalog_broker.config.broker_config import BrokerConfig
    from kafkalog_broker.config.listener_config import known_name

    known = {name for item in describe(BrokerConfig) for name in (item.name, *item.aliases)}
    for name in names:
        if name in known or known_name(name):
            continue
        near = nearest(name.replace("_", "."), known)
        hint = f'; did you mean {near}? start_broker(**{{"{near}": ...}})' if near else ""
        raise InvalidConfig(f"start_broker: the broker has no property {name}{hint}")
