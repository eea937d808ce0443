from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.log.logs import crash_all


@pytest.fixture(autouse=True)
def _no_manager_outlives_its_test() -> Iterator[None]:
    yield
    crash_all()
