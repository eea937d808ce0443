"""A ledger in memory, of the load ``flights`` of one cluster."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.ledger.memory_store import MemoryStore
from tests.support.manual_clock import ManualClock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore) -> Ledger:
    ledger = Ledger(store, "flights", ManualClock())
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    return ledger
