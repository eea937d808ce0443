"""A ledger that remembers: what never changes is read once, with the hint, and everything else each time."""

from __future__ import annotations

from collections import Counter

import pytest

from pyspark_kafkalog.errors import LoadBusy, LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.store import CachingStore, side_by_side
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import P0, facts, loaded


class FarStore(MemoryStore):
    """Counts what is read of it."""

    concurrency = 4

    def __init__(self) -> None:
        super().__init__()
        self.reads = Counter[str]()

    def read(self, name: str) -> bytes | None:
        self.reads[name] += 1
        return super().read(name)


def test_records_and_the_hint_are_read_once_and_what_is_missing_each_time() -> None:
    store = FarStore()
    other = Ledger(store, "flights")
    other.identify("c", {"subscribe": "t"})
    loaded(other, {P0: facts(0, 10)})
    ledger = Ledger(CachingStore(store), "flights")
    store.reads.clear()
    for _ in range(3):
        head = ledger.head()
        assert head is not None
        assert (head.number, ledger.identity() != "", ledger.plan(1).number) == (1, True, 1)
    assert store.reads == {
        "flights/HEAD.json": 1, "flights/commits/00000001.json": 1, "flights/commits/00000002.json": 3,
        "flights/load.json": 1, "flights/plans/00000001.json": 3,
    }  # fmt: skip
    loaded(other, {P0: facts(0, 20)})
    newer = ledger.head()
    assert newer is not None
    assert newer.number == 2, "another driver's commit is seen, although the hint is old"
    assert ledger.head_and_pending() == (newer, None)


def test_a_lock_is_taken_while_the_first_records_are_read() -> None:
    store = FarStore()
    other = Ledger(store, "flights")
    other.identify("c", {"subscribe": "t"})
    loaded(other, {P0: facts(0, 10)})
    ledger = Ledger(CachingStore(store), "flights")
    store.reads.clear()
    with ledger.hold("driver 1"):
        assert store.reads == {"flights/HEAD.json": 1, "flights/load.json": 1}
        with pytest.raises(LoadBusy), Ledger(CachingStore(store), "flights").hold("driver 2"):
            pass
        store.reads.clear()
        ledger.identify("c", {"subscribe": "t"})
        assert ledger.head_and_pending() == (other.head(), None)


def test_what_it_wrote_itself_is_known_and_what_is_removed_is_not() -> None:
    store = FarStore()
    remembering = CachingStore(store)
    assert remembering.create("x/receipts/1/a.json", b"1")
    assert not remembering.create("x/receipts/1/a.json", b"2")
    assert remembering.read("x/receipts/1/a.json") == b"1"
    assert store.reads == {}
    remembering.remove("x/receipts/1/a.json")
    assert remembering.read("x/receipts/1/a.json") is None
    remembering.replace("x/offsets/part-0", b"1")
    store.replace("x/offsets/part-0", b"2")
    assert remembering.read("x/offsets/part-0") == b"2"


def test_calls_side_by_side_keep_their_order_and_raise_what_one_raised() -> None:
    store = FarStore()
    assert side_by_side(store, lambda n: n * n, range(20)) == [n * n for n in range(20)]
    assert side_by_side(store, str, []) == []

    def fail(n: int) -> int:
        if n == 3:
            raise LoadError("the third")
        return n

    with pytest.raises(LoadError, match="the third"):
        side_by_side(store, fail, range(5))
