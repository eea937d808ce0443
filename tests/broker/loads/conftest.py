"""What loads without Spark need."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.loads.engines.local_engine import LocalEngine


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process: `test_local_loads` starts others."""
    monkeypatch.setattr(
        LocalEngine, "run", lambda _, task, count: [line for n in range(count) for line in task(n)]
    )
