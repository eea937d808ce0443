"""One broker for all foreign clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from broker.embedded import start_broker

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
