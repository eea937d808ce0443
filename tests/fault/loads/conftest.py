"""The Spark drivers of all tests here: two local ones, some of which die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.loads.spark_drivers import LOCAL, Drivers


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("local"), [LOCAL, LOCAL])
    yield drivers
    drivers.stop()
