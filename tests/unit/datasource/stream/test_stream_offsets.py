"""A stream's offsets in the checkpoint: their form has a version."""

from __future__ import annotations

import json

import pytest

from pyspark_kafkalog.datasource.stream.stream_offsets import StreamOffset, decode_offsets, encode_offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

OFFSETS = {TopicPartition("b", 1): 7, TopicPartition("a", 10): 3, TopicPartition("b", 0): 2**63 - 1}


def test_s18_the_form_carries_its_version() -> None:
    offset = StreamOffset(OFFSETS, {"b": "id of b"})
    assert encode_offsets(offset) == {
        "version": 2,
        "offsets": {"a": {"10": 3}, "b": {"0": 2**63 - 1, "1": 7}},
        "topicIds": {"b": "id of b"},
    }
    assert decode_offsets(encode_offsets(offset)) == offset


def test_equal_offsets_are_equal_text() -> None:
    ids = {"b": "1", "a": "2"}
    texts = {
        json.dumps(encode_offsets(StreamOffset(dict(order(OFFSETS.items())), dict(order(ids.items())))))
        for order in (list, reversed)
    }
    assert len(texts) == 1


def test_partitions_of_the_first_generation_are_their_brokers() -> None:
    offsets = StreamOffset({TopicPartition("t", 0, 1): 300, TopicPartition("t", 0, 2): 5})
    assert encode_offsets(offsets)["offsets"] == {"t": {"1-0": 300, "2-0": 5}}
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_s19_the_offsets_of_sparks_own_connector_are_version_0() -> None:
    spark = '{"topic":{"0":23,"1":45},"version":{"0":1}}'
    assert decode_offsets(json.loads(spark)) == StreamOffset(
        {
            TopicPartition("topic", 0): 23,
            TopicPartition("topic", 1): 45,
            TopicPartition("version", 0): 1,
        }
    )


def test_s20_a_newer_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidConfig, match="have version 3, and this pyspark-kafkalog knows 2 at most"):
        decode_offsets({"version": 3, "offsets": {}, "more": 1})


@pytest.mark.parametrize(
    "kept",
    [
        None, [], "x", {"version": 2}, {"version": 2, "offsets": [], "topicIds": {}},
        {"version": 2, "offsets": {}}, {"version": 2, "offsets": {}, "topicIds": {"t": 1}},
        {"version": 1, "offsets": {}, "topicIds": {}},
        {"t": 5}, {"t": {"zero": 5}}, {"t": {"0": "5"}}, {"t": {"0": -2}}, {"t": {"0": 2**63}},
        {"t": {"0": True}},
    ],
)  # fmt: skip
def test_an_invalid_offset_is_refused(kept: object) -> None:
    with pytest.raises(InvalidConfig, match="the checkpoint has no offsets of kafkalog"):
        decode_offsets(kept)
