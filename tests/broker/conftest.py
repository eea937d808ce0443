"""One broker for the tests that need nothing special of it, and a topic of its own for each test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from broker.embedded import EmbeddedBroker, start_broker
from tests.support.raw_client import RawClient

_numbers = itertools.count()


@pytest.fixture(scope="session")
def running_broker() -> Iterator[EmbeddedBroker]:
    with start_broker({"offset.metadata.max.bytes": 20}) as broker:
        yield broker


@pytest.fixture
def client(running_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(running_broker.port) as client:
        yield client


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{next(_numbers)}-{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.originalname)[:200]}"


@pytest.fixture
def topic(client: RawClient, topic_name: str) -> str:
    """A topic with two partitions."""
    assert client.create_topic(topic_name, partitions=2).error_code == 0
    return topic_name
