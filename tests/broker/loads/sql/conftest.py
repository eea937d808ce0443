"""Databases for loads, and a topic to load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.spark_topics import Topic
from tests.support.foreign.postgresql import missing, running_postgresql
from tests.support.loads.local_spark import LocalSpark
from tests.support.loads.sql_warehouse import Warehouse
from tests.support.protocol.raw_client import RawClient


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture
def make(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path, request: Any) -> Any:
    def warehouse(driver: str) -> Warehouse:
        if driver.startswith("postgresql"):
            url = request.getfixturevalue("postgresql").replace("postgresql", driver, 1)
        else:
            url = f"{driver}:///{tmp_path}/warehouse.db"
        rows = Topic(client, topic)
        rows.add(*range(10), partition=0)
        rows.add(*range(10, 15), partition=1)
        table = topic.partition("-")[0] + "-events"
        return Warehouse(running_broker.bootstrap_servers, rows, tmp_path, url, table, LocalSpark())

    return warehouse


@pytest.fixture
def warehouse(make: Callable[[str], Warehouse]) -> Warehouse:
    return make("sqlite")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.skipif(bool(missing()), reason=missing() or "")),
    ]
)
def either(request: Any, make: Callable[[str], Warehouse]) -> Warehouse:
    return make(request.param)
