"""What is in a log of Kafka 0.7 comes as rows: any sets, any fetches, cut anywhere, by both engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.kafka07 import Kafka07Cluster
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.formats.v07 import V07Format, entries
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.broker07 import Broker07
from tests.support.formats.captures_07 import MAX_BYTES, message_sets

_topics = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker07]:
    with Broker07() as running:
        yield running


def expected(data: bytes) -> list[tuple[bytes | None, int, int]]:
    """Value, offset and place of each message, as the format's own reader has them."""
    codec, found = V07Format(), []
    for entry in entries(data):
        frame = codec.frame_at(memoryview(data), entry.position, entry.offset)
        assert frame is not None
        for index, message in enumerate(codec.records(memoryview(data), frame, max_bytes=MAX_BYTES)):
            found.append((message.value, message.offset, index))
    return found


@pytest.mark.parametrize("engine", ["plain", "numba"])
@given(data=message_sets, fetch_size=st.integers(1, 4000), draw=st.data())
def test_rows_are_what_was_produced(
    broker: Broker07, engine: Any, data: bytes, fetch_size: int, draw: st.DataObject
) -> None:
    topic = f"t{next(_topics)}"
    broker.append(topic, 1, data)
    starts = [entry.offset for entry in entries(data)]
    cuts = sorted(draw.draw(st.sets(st.sampled_from([0, *starts]), max_size=3), label="cuts"))
    options = parse_batch_options(
        {
            "protocol": "0.7",
            "broker.list": f"5:127.0.0.1:{broker.port}",
            "subscribe": topic,
            "kafka.fetch.size": str(fetch_size),
        }
    )
    lookup = open_cluster(options)
    found, columns = [], ("value", "offset", "innerIndex")
    try:
        assert isinstance(lookup, Kafka07Cluster)
        lookup.engine = engine
        for start, end in itertools.pairwise([0, *cuts, len(data)]):
            for batch in lookup.rows(OffsetRange(TopicPartition(topic, 1, 5), start, end), columns):
                found += [tuple(row.values()) for row in batch.to_pylist()]
    finally:
        lookup.close()
    assert found == expected(data)
