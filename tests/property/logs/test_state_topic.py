from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.logs.state_topic import partition_for


@given(st.text(st.characters(), max_size=30), st.integers(1, 10_000))
def test_every_key_has_a_partition(key: str, count: int) -> None:
    assert 0 <= partition_for(key, count) < count
