"""When a consumer's positions are committed, and when they are not."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.classic.consumer.consumer_connector import OwnedPartitions
from pyspark_kafkalog.classic.consumer.offset_store import OffsetStore
from pyspark_kafkalog.classic.consumer.stream import MessageSet, MessageStream, V07Sets
from pyspark_kafkalog.classic.consumer.zookeeper_group import Claim, SessionLease
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.errors import ConnectionLost
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import PartitionKey
from tests.support.manual_clock import ManualClock

KEY = PartitionKey("t", "1-0", 0)


class Stored:
    """An `OffsetStore` in memory."""

    def __init__(self) -> None:
        self.offsets = {KEY: 0}

    def load(self, partitions: list[PartitionKey]) -> dict[PartitionKey, int]:
        return {key: self.offsets[key] for key in partitions}

    def save(self, offsets: dict[PartitionKey, int]) -> None:
        self.offsets.update(offsets)

    def close(self) -> None: ...


@pytest.fixture
def stored() -> Stored:
    return Stored()


def reading(stored: OffsetStore, before_commit: object) -> tuple[OwnedPartitions, MessageStream]:
    """A stream of three messages, 11 bytes each, whose reader has the second in hand."""
    clock = ManualClock()
    lease = SessionLease(1000, clock)
    lease.confirm(lease.asking())
    stream = MessageStream(0, timeout_ms=0)
    owned = OwnedPartitions(
        ConnectorConfig(zookeeper_connect="zk:1"), stored, lease, lambda *_: stream,
        before_commit=before_commit, clock=clock,  # type: ignore[arg-type]
    )  # fmt: skip
    owned.take({KEY: Claim(0, 1)})
    (partition,) = owned.partitions()
    data = memoryview(encode_set([b"1", b"2", b"3"]))
    stream.put(partition, MessageSet(TopicPartition("t", 0), 0, data, V07Sets(), max_bytes=1 << 20))
    next(stream)
    next(stream)
    return owned, stream


def test_what_is_read_on_while_the_others_are_waited_for_is_not_committed(stored: Stored) -> None:
    """It was handed on too late for who was asked."""
    owned, stream = reading(stored, lambda: next(stream))
    owned.commit(owned.partitions())
    assert stored.offsets == {KEY: 11}
    owned.commit([])
    assert stored.offsets == {KEY: 11}


def test_a_check_before_the_commit_can_prevent_it(stored: Stored) -> None:
    def no() -> None:
        raise ConnectionLost("the target is gone")

    owned, _ = reading(stored, no)
    with pytest.raises(ConnectionLost, match="the target is gone"):
        owned.commit(owned.partitions())
    owned.release([KEY])
    assert stored.offsets == {KEY: 0}, "nor is it committed when it is handed over"


def test_nobody_is_asked_where_there_is_nothing_to_commit(stored: Stored) -> None:
    asked: list[int] = []
    owned, _ = reading(stored, lambda: asked.append(1))
    for _ in range(2):
        owned.commit(owned.partitions())
    assert (asked, stored.offsets) == ([1], {KEY: 11})


def test_what_went_to_another_meanwhile_is_not_committed(stored: Stored) -> None:
    """Though we have joined again since: whoever is asked may take his time."""
    lost_and_found: list[object] = []
    owned, _ = reading(stored, lambda: [call() for call in lost_and_found])  # type: ignore[operator]
    lease = owned._lease
    lost_and_found += [lease.end, lambda: lease.confirm(lease.asking())]
    with pytest.raises(ConnectionLost, match="nothing is committed"):
        owned.commit(owned.partitions())
    assert stored.offsets == {KEY: 0}
