"""A test's directory is its marker: tests/spark/test_x.py is marked ``spark``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent

# kio, one of the oracles, needs Python 3.11; kafka-python, the other, is heard elsewhere too.
collect_ignore = (
    []
    if sys.version_info >= (3, 11)
    else ["unit/formats/test_foreign_codecs.py", "property/protocol/test_foreign.py"]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(_ROOT).parts[0]
        item.add_marker(getattr(pytest.mark, suite))
