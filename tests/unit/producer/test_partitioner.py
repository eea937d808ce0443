from __future__ import annotations

import pytest

from pyspark_kafkalog.producer.routing import KeyPartitioner, StickyPartitioner, murmur2, partition_for


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_what_kafkas_own_tests_expect(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


def test_the_sign_is_cut_off_and_not_turned() -> None:
    # -973932308 & 0x7fffffff, not its absolute value.
    assert partition_for(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000 == 340


def test_a_key_keeps_its_partition_when_more_keys_are_seen_than_remembered() -> None:
    partition = KeyPartitioner(7)
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
