from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as foreign_murmur2

from pyspark_kafkalog.producer.routing import murmur2, partition_for


@given(st.binary(max_size=300))
def test_murmur2_is_that_of_a_foreign_client(data: bytes) -> None:
    assert murmur2(data) == foreign_murmur2(data)


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_goes_where_a_foreign_client_sends_it(key: bytes, count: int) -> None:
    assert partition_for(key, count) == (foreign_murmur2(key) & 0x7FFFFFFF) % count
