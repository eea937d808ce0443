"""Groups of the newer protocol over a log: what is stored, what a full disk prevents, and the timers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kafkalog_broker.groups.consumer_group import Client, ConsumerGroup
from kafkalog_broker.groups.group import NoSuchGroup
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.support.group.coordinators import Coordinators


class Bench(Coordinators):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, partitions=2)
        self.create("a")
        self.hidden: set[str] = set()
        self.restart()

    def may_describe(self, topic: str) -> bool:
        return topic not in self.hidden

    def beat(self, member: str, epoch: int = 0, **fields: object) -> int:
        everything: dict[str, object] = {}
        if epoch == 0:
            everything = {"subscribed_topic_names": ("a",), "rebalance_timeout_ms": 9_000}
            everything["topic_partitions"] = ()
        values: dict[str, Any] = {**everything, **fields}
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member, member_epoch=epoch, **values)
        return self.groups.consumers.heartbeat(request, Client("c", "/h", 1, self.may_describe)).epoch

    @property
    def group(self) -> ConsumerGroup:
        return self.groups.consumers.get("g")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "data")


def test_a_restart_finds_the_group_as_it_was_and_begins_sessions_again(bench: Bench) -> None:
    bench.beat("m1", instance_id="i")
    bench.advance(1)
    bench.beat("m2")
    before = bench.group
    bench.advance(40)
    bench.restart()
    assert bench.group == before
    bench.advance(44)
    assert bench.beat("m1", 1, topic_partitions=()) == 2
    bench.advance(2)
    assert list(bench.group.members) == ["m1"]
    assert bench.beat("m1", 2) == 3


def test_what_the_log_refuses_has_not_happened(bench: Bench) -> None:
    bench.beat("m1")
    before = bench.group
    bench.files.space_bytes = 0
    with pytest.raises(KafkaError):
        bench.beat("m2")
    assert bench.group is before
    bench.advance(46)
    assert bench.group is before
    bench.files.space_bytes = None
    bench.advance(2)
    assert bench.group.state == "Empty"
    after = bench.group
    bench.restart()
    assert bench.group == after


def test_quiet_heartbeats_store_nothing(bench: Bench) -> None:
    bench.beat("m1")
    end = [bench.log_end(partition) for partition in (0, 1)]
    for _ in range(10):
        bench.advance(5)
        assert bench.beat("m1", 1) == 1
    assert [bench.log_end(partition) for partition in (0, 1)] == end


def test_patterns_are_matched_apart_from_calls_and_again_when_topics_change(bench: Bench) -> None:
    def names() -> Mapping[str, UUID]:
        return {name: topic.topic_id for name, topic in bench.group.topics.items()}

    assert bench.beat("m1", subscribed_topic_names=None, subscribed_topic_regex="a.*|__.*") == 1
    assert names() == {}
    bench.advance(0)
    assert bench.beat("m1", 1) == 2
    assert list(names()) == ["a"]
    bench.create("ab")
    assert bench.beat("m1", 2) == 2
    bench.advance(0)
    assert bench.beat("m1", 2) == 3
    assert list(names()) == ["a", "ab"]


def test_patterns_match_only_what_the_member_may_describe(bench: Bench) -> None:
    bench.create("ab")
    bench.hidden = {"ab"}
    bench.beat("m1", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    bench.advance(0)
    assert bench.beat("m1", 1) == 2
    assert list(bench.group.topics) == ["a"]
    assert bench.group.patterns["a.*"].names == ("a",)
    bench.hidden = {"a"}  # topics do not change, so that is seen when the patterns are due
    assert bench.beat("m1", 2) == 2
    bench.advance(0)
    assert bench.beat("m1", 2) == 2
    for _ in range(15):
        bench.advance(40)
        epoch = bench.beat("m1", 2, topic_partitions=())
    bench.advance(0)
    assert (epoch, bench.beat("m1", 2, topic_partitions=())) == (2, 3)
    assert list(bench.group.topics) == ["ab"]


def test_the_rights_of_a_member_that_leaves_do_not_decide(bench: Bench) -> None:
    bench.beat("m1", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    bench.beat("m2")
    bench.advance(0)
    bench.create("ab")
    bench.hidden = {"a", "ab"}
    bench.beat("m2", -1)
    bench.advance(0)
    assert bench.group.patterns["a.*"].names == ("a",)
    bench.hidden = set()
    bench.beat("m1", 1)
    bench.advance(0)
    assert bench.group.patterns["a.*"].names == ("a", "ab")


def test_a_new_pattern_has_all_of_the_group_matched_again(bench: Bench) -> None:
    bench.create("ab")
    bench.hidden = {"ab"}
    bench.beat("m1", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    bench.advance(0)
    bench.hidden = set()
    bench.beat("m2", subscribed_topic_names=None, subscribed_topic_regex="b.*")
    bench.advance(0)
    matched = {pattern: each.names for pattern, each in bench.group.patterns.items()}
    assert matched == {"a.*": ("a", "ab"), "b.*": ()}


def test_a_group_of_the_newer_protocol_ends_without_members_and_offsets(bench: Bench) -> None:
    bench.beat("m1")
    bench.groups.offsets.expire()
    assert bench.group.members
    bench.beat("m1", -1)
    bench.groups.offsets.expire()
    for _ in range(2):
        with pytest.raises(NoSuchGroup):
            bench.groups.consumers.get("g")
        bench.restart()
