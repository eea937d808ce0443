from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_manager_outlives_its_test() -> Iterator[None]:
    yield
    logs = sys.modules.get("tests.support.log.logs")
    if logs is not None:
        logs.crash_all()
