"""Two stores as one: which offset counts, and that neither stays behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from pyspark_kafkalog.classic.consumer.offset_store import DualOffsets, ZooKeeperOffsets
from pyspark_kafkalog.errors import ConnectionLost
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode, PartitionKey, V07Layout
from tests.support.classic.memory_zookeeper import MemorySession, MemoryZooKeeper

A, B, C = (PartitionKey("t", str(n), n) for n in range(3))


class Store:
    def __init__(self, stored: dict[PartitionKey, int], *, away: bool = False) -> None:
        self.stored, self.away = stored, away

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        if self.away:
            raise ConnectionLost("away")
        return {key: self.stored[key] for key in partitions if key in self.stored}

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        if self.away:
            raise ConnectionLost("away")
        self.stored.update(offsets)

    def close(self) -> None:
        self.away = True


def test_both_stores_are_written_the_larger_offset_counts_and_the_other_store_is_brought_up() -> None:
    kafka, zookeeper = Store({A: 5, C: 6}), Store({A: 3, C: 7})
    both = DualOffsets(kafka, zookeeper)
    assert both.load([B]) == {}
    assert (kafka.stored, zookeeper.stored) == ({A: 5, C: 6}, {A: 3, C: 7}), "what was not asked for stays"
    assert both.load([A, B, C]) == {A: 5, C: 7}
    assert kafka.stored == zookeeper.stored == {A: 5, C: 7}
    both.save({B: 2})
    assert kafka.stored == zookeeper.stored == {A: 5, B: 2, C: 7}


@pytest.mark.parametrize("away", ["kafka", "zookeeper"])
def test_one_store_alone_is_not_believed(away: str) -> None:
    """The other one may be ahead."""
    stores = Store({A: 5}, away=away == "kafka"), Store({A: 3}, away=away == "zookeeper")
    with pytest.raises(ConnectionLost):
        DualOffsets(*stores).load([A])


@pytest.mark.parametrize(
    ("layout", "name", "path"),
    [
        (V07Layout(), "1-0", "/consumers/g/offsets/t/1-0"),
        (JsonLayout(), "0", "/kafka/consumers/g/offsets/t/0"),
    ],
)
def test_offsets_are_decimal_in_zookeeper(layout: V07Layout | JsonLayout, name: str, path: str) -> None:
    server = MemoryZooKeeper()
    key = PartitionKey("t", name, 0)
    store = ZooKeeperOffsets(MemorySession(server), layout, "g")  # type: ignore[arg-type]
    assert store.load([key]) == {}
    store.save({key: 12})
    assert server.nodes[path].data == b"12"
    assert store.load([key]) == {key: 12}
    server.nodes.clear()
    MemorySession(server).create(path, b"twelve")
    with pytest.raises(MalformedNode, match="twelve"):
        store.load([key])
