"""A ledger in memory, of the load ``flights`` of one cluster."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import P0, P1, facts, loaded
from tests.support.manual_clock import ManualClock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore) -> Ledger:
    ledger = Ledger(store, "flights", ManualClock())
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    return ledger


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def three_loads(clock: ManualClock) -> Ledger:
    """Loads 1 to 3, a minute apart; the second partition came with load 2, from its offset 3 on."""
    made = Ledger(MemoryStore(), "flights", clock)
    made.identify("cluster-a", {"subscribe": "clicks"})
    for end, others in ((10, {}), (12, {P1: facts(3, 6)}), (15, {P1: facts(3, 8)})):
        loaded(made, {P0: facts(0, end), **others})
        clock.advance(60)
    return made
