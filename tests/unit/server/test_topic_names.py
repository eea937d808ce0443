from __future__ import annotations

import pytest

from kafkalog_broker.log.generations import check_name, collision
from kafkalog_broker.server.topics import MAX_PARTITIONS, check_partition_count
from pyspark_kafkalog.errors import InvalidPartitions, InvalidTopic, ServerError


@pytest.mark.parametrize("name", ["a", "A-b_c.d", "0", "...", "-", "_", "x" * 249, "__consumer_offsets"])
def test_legal_names_pass(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "x" * 250, "a b", "a/b", "a\n", "é", "a\x00", "a:b", "a,b", "../etc", "٣"],
)
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_name(name)


def test_names_that_differ_in_dot_and_underscore_only_collide() -> None:
    assert collision("a.b", ["x", "a_b"]) == "a_b"
    assert collision("a_b.c", ["a.b_c"]) == "a.b_c"
    assert collision("a.b", ["a-b", "ab", "a.b"]) is None


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_a_topic_needs_a_partition(count: int) -> None:
    with pytest.raises(InvalidPartitions):
        check_partition_count(count)


def test_a_request_cannot_ask_for_any_number_of_partitions() -> None:
    check_partition_count(MAX_PARTITIONS)
    with pytest.raises(ServerError, match="10000"):
        check_partition_count(2**31 - 1)
