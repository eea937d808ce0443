"""One broker for all foreign clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig

_numbers = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """``host:port`` of a running broker."""
    with start_broker({"auto.create.topics.enable": False, "log.retention.ms": -1}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic_name() -> str:
    """A name that no other test uses."""
    return f"interop-{next(_numbers)}"


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    """Our own client's view of the broker."""
    with closing(Cluster(ClientConfig(bootstrap_servers=servers))) as found:
        yield found
