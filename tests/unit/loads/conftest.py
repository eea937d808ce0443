"""A ledger in files, of the load ``flights`` of one cluster, and where its table is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.at(tmp_path / "offsets", "flights")
    made.identify("cluster-a", {"subscribe": "clicks"})
    return made


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"
