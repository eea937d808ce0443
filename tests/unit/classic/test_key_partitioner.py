from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.classic.producer.router import JavaHashPartitioner, Murmur2Partitioner, java_hash
from pyspark_kafkalog.producer.routing import partition_for


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("hello", 99162322),
        (bytearray(b"\xff"), 255),
        (-7, -7),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)),
        (2**32, 1),
        (-(2**31) - 1, -(2**31)),
    ],
)
def test_keys_hash_as_java_hashes_them(key: Any, expected: int) -> None:
    assert java_hash(key) == expected


@pytest.mark.parametrize("key", [1.5, True, 2**63, ("a",), object()])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="a key must be str, bytes or a whole number of 64 bits"):
        java_hash(key)


def test_the_first_generation_takes_the_absolute_value() -> None:
    partitioner = JavaHashPartitioner()
    assert partitioner.partition("hello", 7) == 99162322 % 7
    assert partitioner.partition(-7, 4) == 3
    assert partitioner.partition("polygenelubricants", 7) == 2**31 % 7


def test_today_s_wire_hashes_bytes_by_murmur2() -> None:
    partitioner = Murmur2Partitioner()
    assert partitioner.partition("kéy", 12) == partition_for("kéy".encode(), 12)
    assert partitioner.partition(b"key", 12) == partition_for(b"key", 12)
    with pytest.raises(TypeError, match="a key must be bytes or str, not int"):
        partitioner.partition(7, 12)
