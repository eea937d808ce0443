"""A real ZooKeeper for tests: servers of the test's own, sessions that expire when they are told to."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from pyspark_kafkalog.config.zookeeper import ZooKeeperServerConfig
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import Session


def server_in(directory: Path, **properties: object) -> ZooKeeperServer:
    """A server on a free port with its data and log in ``directory``; not started yet."""
    directory.mkdir(exist_ok=True)
    fields = {"client_port": 0, "tick_time_ms": 200, **properties}
    config = ZooKeeperServerConfig(data_dir=str(directory / "data"), **fields)  # type: ignore[arg-type]
    return ZooKeeperServer(config, log=directory / "zookeeper.log")


def expire(session: Session) -> None:
    """Have ZooKeeper end a session at once: a second client takes it up by its id, and closes it."""
    expire_by_id(session.hosts, session.credentials)


def expire_by_id(hosts: str, credentials: tuple[int, bytes]) -> None:
    """The same for the session of anybody whose id and password are known."""
    taken = True
    while taken:  # a client that is quick takes its session back before it is closed
        second = KazooClient(hosts=hosts, client_id=credentials)
        second.start(timeout=10)
        taken = second.client_id == credentials  # otherwise it had ended, and this is a new one
        second.stop()
        second.close()
