from __future__ import annotations

from pyspark_kafkalog.producer.routing import StickyPartitioner, key_partitioner


def test_a_key_keeps_its_partition_when_more_keys_are_seen_than_remembered() -> None:
    partition = key_partitioner(7)
    first = [partition(b"%d" % i) for i in range(100)]
    for i in range(25_000):
        partition(b"other %d" % i)
    assert [partition(b"%d" % i) for i in range(100)] == first
    assert set(first) == set(range(7))


def test_records_without_keys_stay_until_they_are_moved() -> None:
    sticky = StickyPartitioner([0, 1, 2], seed=1)
    seen = {sticky.current}
    for _ in range(100):
        before = sticky.current
        assert sticky.moved() == sticky.current != before
        seen.add(sticky.current)
    assert seen == {0, 1, 2}


def test_one_partition_is_stayed_with() -> None:
    sticky = StickyPartitioner([5])
    assert sticky.moved() == sticky.current == 5
