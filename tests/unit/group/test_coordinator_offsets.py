from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from broker.config import LogConfig
from broker.group.consumer_group import Settings
from broker.group.coordinator import Description, GroupCoordinator, GroupSettings
from broker.group.group import NoSuchGroup
from broker.offsets.offset_records import OFFSETS_TOPIC, CommittedOffset, OffsetKey, encode_key
from broker.scheduler import Scheduler
from broker.store.manager import LogManager
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, ServerError
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.steps import run_steps
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.manual_clock import ManualClock

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
RETENTION_MS = 60_000


class Bench:
    """Coordinators one after the other over one log manager."""

    def __init__(self, directory: Path, partitions: int = 1) -> None:
        self.clock, self.files, self.partitions = ManualClock(), FaultyFiles(), partitions
        self.appended: list[tuple[TopicPartition, int]] = []
        self.created = 0
        self.deleting: frozenset[str] = frozenset()
        self.logs = LogManager(
            [directory],
            defaults=LogConfig(segment_bytes=2000),
            clock=self.clock,
            files=self.files,
            producer_expiration_ms=1000,
        )
        self.logs.start()

    def create(self) -> int:
        self.created += 1
        run_steps(
            self.logs.creating_topic(OFFSETS_TOPIC, uuid4(), self.partitions, {"cleanup.policy": "compact"})
        )
        return self.partitions

    def coordinator(self, *, load: bool = True) -> GroupCoordinator:
        """As a broker that starts now has it."""
        made = GroupCoordinator(
            self.logs,
            self.clock,
            Scheduler(self.clock),
            GroupSettings(
                min_session_timeout_ms=6000,
                max_session_timeout_ms=60_000,
                initial_rebalance_delay_ms=0,
                max_size=100,
                offsets_retention_ms=RETENTION_MS,
            ),
            Settings(),
            create=self.create,
            appended=lambda partition, size: self.appended.append((partition, size)),
            deleting=lambda: self.deleting,
        )
        made.look()
        if load:
            made.load()
        return made

    def offset(self, offset: int, expires_ms: int = -1) -> CommittedOffset:
        return CommittedOffset(offset, 0, "", self.clock.time_ms(), expires_ms)

    def log_end(self, partition: int = 0) -> int:
        return self.logs.log(TopicPartition(OFFSETS_TOPIC, partition)).end_offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.files.space_bytes = None
    made.logs.close()


def test_the_topic_is_made_on_first_need_and_once(bench: Bench) -> None:
    coordinator = bench.coordinator()
    assert coordinator.offsets.fetch("g") == {}
    assert bench.created == 0
    coordinator.open()
    coordinator.open()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    assert bench.created == 1


def test_a_commit_is_one_batch_and_wakes_those_who_wait(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(2)})
    assert bench.log_end() == 2
    assert [partition for partition, _ in bench.appended] == [TopicPartition(OFFSETS_TOPIC, 0)]
    assert {p: v.offset for p, v in coordinator.offsets.fetch("g").items()} == {A: 1, B: 2}


def test_what_is_fetched_is_a_copy(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    before = coordinator.offsets.fetch("g")
    coordinator.offsets.commit("g", {A: bench.offset(2)})
    assert before[A].offset == 1


def test_until_the_log_is_loaded_a_group_is_answered_with_error_14(bench: Bench) -> None:
    bench.coordinator().offsets.commit("g", {A: bench.offset(1)})
    coordinator = bench.coordinator(load=False)
    with pytest.raises(CoordinatorLoading):
        coordinator.offsets.fetch("g")
    with pytest.raises(CoordinatorLoading):
        coordinator.offsets.commit("g", {A: bench.offset(9)})
    with pytest.raises(CoordinatorLoading):
        coordinator.groups()
    with pytest.raises(CoordinatorLoading):
        coordinator.describe("g")
    coordinator.offsets.expire()
    run_steps(coordinator.offsets.forgetting_topic("a"))
    coordinator.load()
    assert coordinator.offsets.fetch("g")[A].offset == 1
    assert coordinator.groups() == [Description("g", "Empty", "classic", "")]
    assert coordinator.describe("g").members == ()
    with pytest.raises(NoSuchGroup):
        coordinator.describe("h")


def test_loading_goes_over_segments_and_takes_the_last_of_each_key(bench: Bench) -> None:
    coordinator = bench.coordinator()
    for i in range(200):
        coordinator.offsets.commit(f"g{i % 7}", {A: bench.offset(i), B: bench.offset(2 * i)})
    assert bench.logs.log(TopicPartition(OFFSETS_TOPIC, 0)).segment_count > 3
    loaded = bench.coordinator()
    for i in range(193, 200):
        assert {p: v.offset for p, v in loaded.offsets.fetch(f"g{i % 7}").items()} == {A: i, B: 2 * i}
        assert loaded.offsets.fetch(f"g{i % 7}") == coordinator.offsets.fetch(f"g{i % 7}")


def test_loading_skips_what_it_does_not_know(bench: Bench) -> None:
    coordinator = bench.coordinator()
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
    loaded = bench.coordinator()
    assert {p: v.offset for p, v in loaded.offsets.fetch("g").items()} == {A: 1, B: 2}
    assert loaded.offsets.fetch("h") == {}


def test_groups_are_spread_over_partitions_and_found_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, partitions=5)
    coordinator = bench.coordinator()
    for i in range(50):
        coordinator.offsets.commit(f"group-{i}", {A: bench.offset(i)})
    assert all(bench.log_end(p) > 0 for p in range(5))
    loaded = bench.coordinator()
    assert [loaded.offsets.fetch(f"group-{i}")[A].offset for i in range(50)] == list(range(50))
    bench.logs.close()


def test_a_commit_that_the_disk_refuses_changes_nothing(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    bench.files.space_bytes = 0
    with pytest.raises(ServerError) as refused:
        coordinator.offsets.commit("g", {A: bench.offset(2)})
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert coordinator.offsets.fetch("g")[A].offset == 1


def test_a_deleted_topic_leaves_a_tombstone_and_stays_forgotten(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(2)})
    coordinator.offsets.commit("only-a", {A: bench.offset(3)})
    run_steps(coordinator.offsets.forgetting_topic("a"))
    assert bench.log_end() == 5
    for c in (coordinator, bench.coordinator()):
        assert {p: v.offset for p, v in c.offsets.fetch("g").items()} == {B: 2}
        assert c.offsets.fetch("only-a") == {}


def test_a_tombstone_that_the_disk_refuses_keeps_the_offset_until_it_can_be_written(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    bench.clock.advance(RETENTION_MS / 1000)
    bench.files.space_bytes = 0
    coordinator.offsets.expire()
    assert coordinator.offsets.fetch("g")[A].offset == 1
    assert "1 offsets could not be deleted from __consumer_offsets-0" in caplog.text
    bench.files.space_bytes = None
    coordinator.offsets.expire()
    assert coordinator.offsets.fetch("g") == {}


def test_offsets_expire_by_their_last_commit(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1), B: bench.offset(1)})
    bench.clock.advance(RETENTION_MS / 2000)
    coordinator.offsets.commit("g", {B: bench.offset(2)})
    bench.clock.advance(RETENTION_MS / 2000)
    coordinator.offsets.expire()
    assert {p: v.offset for p, v in coordinator.offsets.fetch("g").items()} == {B: 2}
    assert bench.coordinator().offsets.fetch("g") == coordinator.offsets.fetch("g")


def test_a_commits_own_expiry_goes_before_the_brokers(bench: Bench) -> None:
    coordinator = bench.coordinator()
    now = bench.clock.time_ms()
    coordinator.offsets.commit(
        "g", {A: bench.offset(1, now + 1000), B: bench.offset(2, now + 2 * RETENTION_MS)}
    )
    bench.clock.advance(1)
    coordinator.offsets.expire()
    assert set(coordinator.offsets.fetch("g")) == {B}
    bench.clock.advance(RETENTION_MS / 1000)
    coordinator.offsets.expire()
    assert set(coordinator.offsets.fetch("g")) == {B}


def test_nothing_expired_writes_nothing(bench: Bench) -> None:
    coordinator = bench.coordinator()
    coordinator.offsets.commit("g", {A: bench.offset(1)})
    coordinator.offsets.expire()
    run_steps(coordinator.offsets.forgetting_topic("never-committed"))
    assert bench.log_end() == 1


def test_offsets_of_a_deleted_topic_are_neither_given_nor_taken_until_they_are_forgotten(
    bench: Bench,
) -> None:
    """The next topic of its name is another one, which a committed offset of the old one would cut short."""
    bench.coordinator().offsets.commit("g", {A: bench.offset(5), B: bench.offset(7)})
    bench.deleting = frozenset({"a"})
    groups = bench.coordinator(load=False)
    assert groups.offsets.has_loaded(())
    assert not groups.offsets.has_loaded([0])
    groups.load()
    assert groups.offsets.has_loaded([0])
    assert not groups.offsets.has_loaded([0, 1])
    assert groups.offsets.fetch("g") == {B: bench.offset(7)}
    with pytest.raises(CoordinatorLoading):
        groups.offsets.commit("g", {A: bench.offset(1)})
    groups.offsets.commit("g", {B: bench.offset(8)})
    run_steps(groups.offsets.forgetting_topic("a"))
    bench.deleting = frozenset()
    assert groups.offsets.fetch("g") == {B: bench.offset(8)}
    groups.offsets.commit("g", {A: bench.offset(1)})
    assert bench.coordinator().offsets.fetch("g") == {A: bench.offset(1), B: bench.offset(8)}
