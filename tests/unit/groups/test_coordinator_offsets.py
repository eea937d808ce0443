from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.groups.group_coordinator import Description
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset, OffsetKey, encode_key
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, ServerError
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.group.coordinators import RETENTION, Coordinators

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class Bench(Coordinators):
    def offset(self, offset: int, expires_ms: int = -1) -> CommittedOffset:
        return CommittedOffset(offset, 0, "", self.clock.time_ms(), expires_ms)

    def create_topics(self, *names: str) -> None:
        for name in names:
            self.logs.create_topic(name, uuid4(), 2)

    def offset_of(self, partition: TopicPartition, offset: int) -> CommittedOffset:
        return replace(self.offset(offset), topic_id=self.logs.topics[partition.topic].topic_id)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, segment_bytes=2000)
    yield made
    made.close()


def test_the_topic_is_made_on_first_need_and_once(bench: Bench) -> None:
    coordinator = bench.restart()
    assert coordinator.offsets.fetch("g") == {}
    assert bench.created == 0
    coordinator.open()
    coordinator.open()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    assert bench.created == 1


def test_a_commit_is_one_batch_and_wakes_those_who_wait(bench: Bench) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(2)})
    assert bench.log_end() == 2
    assert [partition for partition, _ in bench.appended] == [TopicPartition(OFFSETS_TOPIC, 0)]
    before = coordinator.offsets.fetch("g")
    coordinator.offsets.commit("g", {A: bench.offset(3)})
    assert {p: v.offset for p, v in before.items()} == {A: 1, B: 2}, "what was fetched is a copy"


def test_until_the_log_is_loaded_a_group_is_answered_with_error_14(bench: Bench) -> None:
    bench.restart().offsets.commit("g", {A: bench.offset(1)})
    coordinator = bench.restart(load=False)
    with pytest.raises(CoordinatorLoading):
        coordinator.offsets.fetch("g")
    with pytest.raises(CoordinatorLoading):
        coordinator.offsets.commit("g", {A: bench.offset(9)})
    with pytest.raises(CoordinatorLoading):
        coordinator.groups()
    with pytest.raises(CoordinatorLoading):
        coordinator.describe("g")
    coordinator.offsets.expire()
    coordinator.offsets.forget_topic("a", ZERO_UUID)
    coordinator.load()
    assert coordinator.offsets.fetch("g")[A].offset == 1
    assert coordinator.groups() == [Description("g", "Empty", "classic", "")]
    assert coordinator.describe("g").members == ()
    with pytest.raises(NoSuchGroup):
        coordinator.describe("h")


def test_loading_goes_over_segments_and_takes_the_last_of_each_key(bench: Bench) -> None:
    coordinator = bench.restart()
    for i in range(200):
        coordinator.offsets.commit(f"g{i % 7}", {A: bench.offset(i), B: bench.offset(2 * i)})
    assert bench.logs.log(TopicPartition(OFFSETS_TOPIC, 0)).segment_count > 3
    loaded = bench.restart()
    for i in range(193, 200):
        assert {p: v.offset for p, v in loaded.offsets.fetch(f"g{i % 7}").items()} == {A: i, B: 2 * i}
        assert loaded.offsets.fetch(f"g{i % 7}") == coordinator.offsets.fetch(f"g{i % 7}")


def test_loading_skips_what_it_does_not_know(bench: Bench) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    log = bench.logs.log(TopicPartition(OFFSETS_TOPIC, 0))
    good_key = encode_key(OffsetKey("h", A))
    for key, value in (
        (b"\x00\x02\x00\x01g", b"group metadata"),
        (b"\x00\x09whatever", b"a later version"),
        (b"\x00\x01\x00\x63cut", b"x"),
        (good_key, b"\x00\x09 a later value"),
        (good_key, b""),
        (None, b"no key"),
    ):
        log.append(bytearray(encode_batch([NewRecord(value, key)])), internal=True)
    log.append(
        bytearray(encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=0)),
        internal=True,
    )
    coordinator.offsets.commit("g", {B: bench.offset(2)})
    loaded = bench.restart()
    assert {p: v.offset for p, v in loaded.offsets.fetch("g").items()} == {A: 1, B: 2}
    assert loaded.offsets.fetch("h") == {}


def test_groups_are_spread_over_partitions_and_found_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, partitions=5)
    coordinator = bench.restart()
    for i in range(50):
        coordinator.offsets.commit(f"group-{i}", {A: bench.offset(i)})
    assert all(bench.log_end(p) > 0 for p in range(5))
    loaded = bench.restart()
    assert [loaded.offsets.fetch(f"group-{i}")[A].offset for i in range(50)] == list(range(50))
    bench.close()


def test_a_commit_that_the_disk_refuses_changes_nothing(bench: Bench) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    bench.files.space_bytes = 0
    with pytest.raises(ServerError) as refused:
        coordinator.offsets.commit("g", {A: bench.offset(2)})
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert coordinator.offsets.fetch("g")[A].offset == 1


def test_a_deleted_topic_leaves_a_tombstone_and_stays_forgotten(bench: Bench) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(2)})
    coordinator.offsets.commit("only-a", {A: bench.offset(3)})
    coordinator.offsets.forget_topic("a", ZERO_UUID)
    assert bench.log_end() == 5
    for c in (coordinator, bench.restart()):
        assert {p: v.offset for p, v in c.offsets.fetch("g").items()} == {B: 2}
        assert c.offsets.fetch("only-a") == {}


def test_a_tombstone_that_the_disk_refuses_keeps_the_offset_until_it_can_be_written(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    bench.clock.advance(RETENTION)
    bench.files.space_bytes = 0
    coordinator.offsets.expire()
    assert coordinator.offsets.fetch("g")[A].offset == 1
    assert "expiring offsets of g failed, trying again" in caplog.text
    bench.files.space_bytes = None
    coordinator.offsets.expire()
    assert coordinator.offsets.fetch("g") == {}


def test_offsets_expire_by_their_last_commit_and_while_none_does_nothing_is_written(bench: Bench) -> None:
    coordinator = bench.restart()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(1)})
    coordinator.offsets.expire()
    coordinator.offsets.forget_topic("never-committed", ZERO_UUID)
    assert bench.log_end() == 2
    bench.clock.advance(RETENTION / 2)
    coordinator.offsets.commit("g", {B: bench.offset(2)})
    bench.clock.advance(RETENTION / 2)
    coordinator.offsets.expire()
    assert {p: v.offset for p, v in coordinator.offsets.fetch("g").items()} == {B: 2}
    assert bench.restart().offsets.fetch("g") == coordinator.offsets.fetch("g")


def test_a_commits_own_expiry_goes_before_the_brokers(bench: Bench) -> None:
    coordinator = bench.restart()
    now = bench.clock.time_ms()
    coordinator.offsets.commit(
        "g", {A: bench.offset(1, now + 1000), B: bench.offset(2, now + 2000 * int(RETENTION))}
    )
    bench.clock.advance(1)
    coordinator.offsets.expire()
    assert set(coordinator.offsets.fetch("g")) == {B}
    bench.clock.advance(RETENTION)
    coordinator.offsets.expire()
    assert set(coordinator.offsets.fetch("g")) == {B}


def test_a_new_topic_does_not_get_the_offsets_of_one_that_had_its_name(bench: Bench) -> None:
    """Whatever the deletion left: it may have met a full disk, a kill, or a coordinator that was stopped."""
    groups = bench.restart()
    bench.create_topics("a", "b")
    groups.offsets.commit("g", {A: bench.offset_of(A, 777), B: bench.offset_of(B, 7)})
    groups.offsets.commit("g", {A: bench.offset_of(A, 778)}, producer=(1, 0))
    bench.logs.delete_topic("a")
    assert groups.offsets.fetch("g")[A].offset == 777  # until there is another, as in Kafka
    bench.create_topics("a")
    restarted = bench.restart()
    for each in (groups, restarted):
        assert {p: v.offset for p, v in each.offsets.fetch("g").items()} == {B: 7}
        assert each.offsets.unstable("g", [A, B]) == set()
    offsets = restarted.offsets
    offsets.end_transaction(TopicPartition(OFFSETS_TOPIC, 0), 1, 0, commit=True)
    assert A not in offsets.fetch("g")
    offsets.commit("g", {A: bench.offset_of(A, 1)}, producer=(2, 0))
    assert offsets.unstable("g", [A, B]) == {A}
    offsets.end_transaction(TopicPartition(OFFSETS_TOPIC, 0), 2, 0, commit=True)
    offsets.forget_topic("a", uuid4())  # of yet another one
    for each in (restarted, bench.restart()):
        assert {p: v.offset for p, v in each.offsets.fetch("g").items()} == {A: 1, B: 7}


def test_newer_topics_are_asked_for_only_where_there_is_an_offset(bench: Bench) -> None:
    """In a cluster that asks ZooKeeper."""
    groups, asked = bench.restart(), []
    bench.create_topics("a", "b")

    def ask() -> Mapping[str, StoredTopic]:
        asked.append("asked")
        return bench.logs.topics

    groups.offsets.newest_topics = ask
    assert groups.offsets.fetch("g") == {}
    assert groups.offsets.unstable("g", [A, B]) == set()
    groups.offsets.commit("g", {A: bench.offset_of(A, 7)})
    assert asked == []
    assert set(groups.offsets.fetch("g")) == {A}
    assert asked == ["asked"]


def test_expiry_deletes_what_a_replaced_topic_left(bench: Bench) -> None:
    groups = bench.restart()
    bench.create_topics("a", "b")
    groups.offsets.commit("g", {A: bench.offset_of(A, 777), B: bench.offset_of(B, 7)})
    groups.offsets.commit("only-a", {A: bench.offset_of(A, 777)})
    bench.logs.delete_topic("a")
    groups.offsets.expire()
    assert bench.log_end() == 3
    bench.create_topics("a")
    groups.offsets.expire()
    assert bench.log_end() == 5
    assert [group.group for group in groups.groups()] == ["g"]
    assert [group.group for group in bench.restart().groups()] == ["g"]
