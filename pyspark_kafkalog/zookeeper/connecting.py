"""Sessions as configurations ask for them."""

from __future__ import annotations

from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
from pyspark_kafkalog.zookeeper.session import Session


def session_of(config: ZooKeeperConfig) -> Session:
    """The session to meet others in, not started yet. Raises `InvalidConfig` without a place to meet."""
    return Session(
        config.zookeeper_connect or "",
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
    )
