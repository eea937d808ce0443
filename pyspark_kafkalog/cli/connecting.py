"""What every command that talks to a cluster has in common: the option that names it, and the connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client import ClientConfig

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "-b", envvar="KAFKALOG_BOOTSTRAP_SERVER", help="Brokers to ask, host:port,..."
    ),
]
DEFAULT_SERVER = "127.0.0.1:9092"


@contextmanager
def connected(server: str) -> Iterator[Cluster]:
    """The cluster for the length of one command."""
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    try:
        yield cluster
    finally:
        cluster.close()
