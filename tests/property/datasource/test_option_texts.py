"""What users write: round trips of what is right, and an error that says why for the rest."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.offsets import (
    PartitionTimestamps,
    SpecificOffsets,
    format_offsets,
    parse_offsets,
    parse_partition_timestamps,
    parse_partitions,
)
from pyspark_kafkalog.datasource.option_table import OPTIONS
from pyspark_kafkalog.datasource.options import parse_batch_options
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.errors import UnsafeStore
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

_topics = st.text(min_size=1, max_size=8)
_partitions = st.builds(
    lambda *where: TopicPartition(*where), _topics, st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1)
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_texts = (
    st.text(max_size=20) | _json.map(json.dumps) | st.sampled_from(["earliest", "1", "t", '{"t":{"0":1}}'])
)


@given(st.dictionaries(_partitions, st.integers(-2, 2**63 - 1), max_size=6))
def test_offsets_are_read_as_they_were_written(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets("startingOffsets", format_offsets(offsets)) == SpecificOffsets(offsets)


@given(st.dictionaries(_partitions, st.integers(0, 2**63 - 1), max_size=6))
def test_timestamps_are_read_as_they_were_written(times: dict[TopicPartition, int]) -> None:
    read = parse_partition_timestamps("startingOffsetsByTimestamp", format_offsets(times))
    assert read == PartitionTimestamps(times)


@given(st.sets(_partitions, min_size=1, max_size=6))
def test_assigned_partitions_are_read_sorted(partitions: set[TopicPartition]) -> None:
    by_topic: dict[str, list[int | str]] = {}
    for where in partitions:
        name = where.partition if where.broker == NO_BROKER else where.number
        by_topic.setdefault(where.topic, []).append(name)
    assert parse_partitions("assign", json.dumps(by_topic)) == sorted(partitions)


@given(
    st.dictionaries(
        st.sampled_from([option.name for option in OPTIONS]) | st.text(max_size=8), _texts, max_size=4
    )
)
def test_options_are_understood_or_refused(given: dict[str, str]) -> None:
    for base in (
        {},
        {"kafka.bootstrap.servers": "h:1"},
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t"},
    ):
        with contextlib.suppress(InvalidConfig, UnsafeStore):
            parse_batch_options({**base, **given})
