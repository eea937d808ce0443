"""A real ZooKeeper for tests: servers of the test's own, sessions that expire only when a test ends them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from kafkalog_broker.embedded import BrokerNotStarted, EmbeddedBroker, start_broker
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.until import until

_SECONDS = 60
_PERSISTENT = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}
"""Otherwise kazoo gives up at the first connection that is dropped."""
PATIENT_MS = 120_000
PATIENT: dict[str, object] = {
    "zookeeper.session.timeout.ms": PATIENT_MS, "zookeeper.connection.timeout.ms": PATIENT_MS,
}  # fmt: skip
"""For brokers and consumers. A machine may stand still for 30 s, and a broker refuses requests once it has
not run for half of its session's time. A test that wants a session to end uses `expire` or its kin.
"""


def patient_session(connect: str) -> ZooKeeperSession:
    """A session that outlives pauses of the machine; not started yet."""
    return ZooKeeperSession(connect, session_timeout_ms=PATIENT_MS, connection_timeout_ms=PATIENT_MS)


def server_in(directory: Path, **properties: object) -> ZooKeeperServer:
    """A server on a free port with its data and log in ``directory``; not started yet."""
    directory.mkdir(exist_ok=True)
    fields = {"client_port": 0, "tick_time_ms": 200, "max_session_timeout_ms": PATIENT_MS, **properties}
    config = ZooKeeperServerConfig(data_dir=str(directory / "data"), **fields)  # type: ignore[arg-type]
    return ZooKeeperServer(config, log=directory / "zookeeper.log")


def impatient_broker(properties: Mapping[str, object]) -> EmbeddedBroker:
    """A broker with a short ``zookeeper.connection.timeout.ms``; where that passes while it starts, as the
    machine stands still, it is started again.
    """

    def attempt() -> EmbeddedBroker | None:
        try:
            return start_broker({"zookeeper.session.timeout.ms": PATIENT_MS, **properties})
        except BrokerNotStarted as e:
            if "ZooKeeper" not in str(e):
                raise
            return None

    broker = until(attempt, seconds=180)
    assert broker is not None
    return broker


def expire(session: ZooKeeperSession) -> None:
    """Have ZooKeeper end a session at once: a second client takes it up by its id, and closes it."""
    expire_by_id(session.hosts, session.credentials)


def expire_owner(hosts: str, path: str) -> None:
    """The same for the session that owns an ephemeral znode, such as that of a broker that was killed."""
    client = KazooClient(hosts=hosts, connection_retry=_PERSISTENT)
    client.start(timeout=_SECONDS)
    try:
        session_id = client.get(path)[1].ephemeralOwner
    finally:
        client.stop()
        client.close()
    expire_by_id(hosts, (session_id, _password_of(session_id)))


def expire_broker(connect: str, number: int) -> None:
    """The same for the session of a broker with a listener of today's wire."""
    expire_owner(connect, f"/kafka/brokers/ids/{number}")


def _password_of(session_id: int) -> bytes:
    """What ZooKeeper gives a session as its password: sixteen bytes of java.util.Random with this seed.

    Source: ZooKeeper's ZooKeeperServer.generatePasswd.
    """
    state = (session_id ^ 0xB3415C00 ^ 0x5DEECE66D) & ((1 << 48) - 1)
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        password += (state >> 16).to_bytes(4, "little")
    return password


def expire_by_id(hosts: str, credentials: tuple[int, bytes]) -> None:
    """The same for the session of anybody whose id and password are known."""

    def ended() -> bool:
        second = KazooClient(hosts=hosts, client_id=credentials, connection_retry=_PERSISTENT)
        try:
            second.start(timeout=_SECONDS)
            # Another id is that of a new session: this one had ended. With the same id it ends now, unless
            # its client takes it back before it is closed: so it is looked at once more.
            return second.client_id != credentials
        except KazooTimeoutError:
            return False  # its client took it back at once, and this connection was closed
        finally:
            second.stop()
            second.close()

    until(ended)
