"""A test's directory is its marker: tests/spark/test_x.py is marked ``spark``."""

from __future__ import annotations

from pathlib import Path

import pytest

_ROOT = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(_ROOT).parts[0]
        item.add_marker(getattr(pytest.mark, suite))
