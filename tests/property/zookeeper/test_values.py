"""Rubbish in a znode raises nothing but our own error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.zookeeper.paths import (
    JsonLayout,
    Layout,
    MalformedNode,
    V07Layout,
    read_cluster_id,
    read_offset,
)

LAYOUTS = pytest.mark.parametrize("layout", [V07Layout(), JsonLayout()], ids=["plain", "json"])


@LAYOUTS
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_rubbish_raises_only_our_error(layout: Layout, data: bytes) -> None:
    for read in (
        lambda: layout.read_broker(1, data),
        lambda: layout.read_subscription(data),
        lambda: layout.read_partitions("1", data),
        lambda: read_cluster_id(data),
        lambda: read_offset(data),
    ):
        with contextlib.suppress(MalformedNode):
            read()
