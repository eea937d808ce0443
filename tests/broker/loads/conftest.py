"""What loads without Spark need."""

from __future__ import annotations

import pytest

from tests.support.loads.tasks_here import run_tasks_here


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks_here(monkeypatch.setattr)
