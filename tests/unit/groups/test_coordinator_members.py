"""Classic groups over a log: what is stored, what a full disk prevents, timers, and when offsets expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.groups.classic_rules import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.groups.group_records import encode_group_key
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, KafkaError
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.group.coordinators import RETENTION, Coordinators

SESSION, REBALANCE = 10.0, 20.0
READ, UNREAD = TopicPartition("read", 0), TopicPartition("unread", 0)
SUBSCRIPTION = bytes.fromhex("0000 00000001 0004") + b"read" + bytes.fromhex("ffffffff")


class Bench(Coordinators):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.restart()

    def join(self, group: str = "g", member_id: str = "", **other: Any) -> list[JoinAnswer]:
        """The answers, in a list that those to come are added to."""
        answers: list[JoinAnswer] = []
        fields: dict[str, Any] = {
            "member_id": member_id, "new_id": "a", "instance_id": None, "client_id": "c",
            "client_host": "/h", "session_timeout_ms": int(SESSION * 1000),
            "rebalance_timeout_ms": int(REBALANCE * 1000), "protocol_type": "consumer",
            "protocols": (("range", SUBSCRIPTION),), "names_first": False, "can_skip": True,
        }  # fmt: skip
        self.groups.join(group, JoinRequest(**fields | other), answers.append)
        return answers

    def sync(self, member_id: str, generation: int, **assignments: bytes) -> list[SyncAnswer]:
        answers: list[SyncAnswer] = []
        self.groups.sync(
            "g", SyncRequest(member_id, None, generation, None, None, assignments), answers.append
        )
        return answers

    def stable(self) -> None:
        """A group of one member, a, that has an assignment."""
        self.join()
        assert self.sync("a", 1, a=b"all") == [SyncAnswer(ErrorCode.NONE, "consumer", "range", b"all")]

    def commit(self, *partitions: TopicPartition, **member: Any) -> None:
        offsets = {p: CommittedOffset(1, commit_timestamp_ms=self.clock.time_ms()) for p in partitions}
        self.groups.offsets.commit("g", offsets, **member)

    def commit_as_a(self, *partitions: TopicPartition) -> None:
        self.commit(*partitions, member_id="a", generation=1)

    def live(self, seconds: float) -> None:
        """Member a heartbeats meanwhile."""
        for _ in range(int(seconds / 5)):
            self.advance(5)
            assert self.groups.heartbeat("g", "a", None, 1) is ErrorCode.NONE

    def state(self) -> str:
        return self.groups.describe("g").state

    def stored(self) -> list[tuple[bytes | None, bool]]:
        """Keys of the log's records, and whether they have a value."""
        log = self.logs.log(TopicPartition(OFFSETS_TOPIC, 0))
        data = log.read(0, 1 << 20, at_least_one=True)
        try:
            found = records(memoryview(data.read()), start_offset=0, max_bytes=1 << 20)
            return [(record.key, record.value is not None) for record in found]
        finally:
            data.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_session_ends_by_the_timer_and_the_group_is_empty(bench: Bench) -> None:
    bench.stable()
    bench.advance(SESSION - 0.1)
    assert bench.state() == "Stable"
    bench.advance(0.2)
    assert bench.state() == "Empty"
    bench.restart()
    assert bench.state() == "Empty"
    assert bench.groups.describe("g").protocol_type == "consumer"


def test_a_refused_join_makes_no_group(bench: Bench) -> None:
    assert bench.join(protocols=())[0].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(NoSuchGroup):
        bench.groups.describe("g")
    with pytest.raises(KafkaError) as refused:
        bench.join(member_id="x")
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.groups.groups() == []


def test_an_id_that_was_given_out_makes_the_group(bench: Bench) -> None:
    assert bench.join(names_first=True) == [JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "a")]
    assert bench.state() == "Empty"
    assert bench.stored() == [(encode_group_key("g"), True)]
    bench.advance(SESSION + 1)
    assert bench.join(member_id="a") == [JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "a")]
    bench.restart()
    assert bench.state() == "Empty"


def test_until_it_is_loaded_members_must_retry_but_heartbeats_succeed(bench: Bench) -> None:
    bench.stable()
    bench.restart(load=False)
    with pytest.raises(CoordinatorLoading):
        bench.join(member_id="a")
    with pytest.raises(CoordinatorLoading):
        bench.sync("a", 1)
    with pytest.raises(CoordinatorLoading):
        bench.groups.leave("g", [("a", None)])
    assert bench.groups.heartbeat("g", "a", None, 1) is ErrorCode.NONE
    bench.groups.close()
    bench.groups.load()
    with pytest.raises(KafkaError) as stopping:
        bench.join(member_id="a")
    assert stopping.value.code is ErrorCode.NOT_COORDINATOR


def test_assignments_that_the_disk_refuses_are_not_given(bench: Bench) -> None:
    (joined,) = bench.join()
    bench.files.space_bytes = 0
    assert bench.sync("a", joined.generation, a=b"all") == [SyncAnswer(ErrorCode.NOT_COORDINATOR)]
    assert bench.state() == "PreparingRebalance"
    bench.files.space_bytes = None
    (again,) = bench.join(member_id="a")
    assert bench.sync("a", again.generation, a=b"all")[0].assignment == b"all"
    bench.restart()
    assert bench.groups.describe("g").members[0].assignment == b"all"


def test_who_waits_is_answered_at_the_end_and_nothing_runs_after_it(bench: Bench) -> None:
    bench.stable()
    answers = bench.join(new_id="b")
    bench.groups.close()
    assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    bench.advance(1000)
    assert bench.stored() == [(encode_group_key("g"), True)]


def test_a_deleted_group_leaves_tombstones_and_stays_deleted(bench: Bench) -> None:
    bench.stable()
    bench.commit_as_a(READ)
    with pytest.raises(KafkaError) as refused:
        bench.groups.delete("g")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    bench.groups.leave("g", [("a", None)])
    bench.groups.delete("g")
    assert [has_value for _, has_value in bench.stored()[-2:]] == [False, False]
    for _ in range(2):
        with pytest.raises(NoSuchGroup):
            bench.groups.describe("g")
        assert bench.groups.offsets.fetch("g") == {}
        bench.restart()


class TestExpiry:
    def test_a_stable_group_keeps_what_it_subscribes_to(self, bench: Bench) -> None:
        bench.stable()
        bench.commit_as_a(READ, UNREAD)
        bench.live(RETENTION - 10)
        bench.groups.offsets.expire()
        assert set(bench.groups.offsets.fetch("g")) == {READ, UNREAD}
        bench.live(10)
        bench.groups.offsets.expire()
        assert set(bench.groups.offsets.fetch("g")) == {READ}

    def test_a_group_that_rebalances_or_that_does_not_say_what_it_reads_keeps_all(self, bench: Bench) -> None:
        bench.stable()
        bench.commit_as_a(READ, UNREAD)
        bench.live(RETENTION)
        bench.join(new_id="b")
        bench.groups.offsets.expire()
        assert set(bench.groups.offsets.fetch("g")) == {READ, UNREAD}

    def test_an_empty_groups_offsets_count_from_when_it_became_so_and_it_goes_with_them(
        self, bench: Bench
    ) -> None:
        bench.stable()
        bench.commit_as_a(READ)
        bench.live(RETENTION)
        bench.groups.leave("g", [("a", None)])
        bench.restart()
        bench.clock.advance(RETENTION - 1)
        bench.groups.offsets.expire()
        assert set(bench.groups.offsets.fetch("g")) == {READ}
        bench.clock.advance(1)
        bench.groups.offsets.expire()
        assert (encode_group_key("g"), False) == bench.stored()[-1]
        for _ in range(2):
            assert bench.groups.groups() == []
            bench.restart()

    def test_what_an_open_transaction_has_stored_too_stays(self, bench: Bench) -> None:
        bench.commit(READ)
        bench.commit(READ, producer=(7, 0))
        bench.clock.advance(RETENTION)
        bench.groups.offsets.expire()
        assert set(bench.groups.offsets.fetch("g")) == {READ}

    def test_a_group_that_is_about_to_be_joined_stays(self, bench: Bench) -> None:
        bench.join(names_first=True)
        bench.groups.offsets.expire()
        assert bench.state() == "Empty"
        bench.advance(SESSION)
        bench.groups.offsets.expire()
        assert bench.groups.groups() == []


def test_records_that_cannot_be_read_are_skipped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stable()
    log = bench.logs.log(TopicPartition(OFFSETS_TOPIC, 0))
    for key, value in ((encode_group_key("h"), b"\0\3cut"), (b"\0\2\0\x09cut", b"x"), (b"\0\x63", b"x")):
        log.append(bytearray(encode_batch([NewRecord(value, key)])), internal=True)
    bench.restart()
    assert [group.group for group in bench.groups.groups()] == ["g"]
    assert caplog.text.count("is skipped") == 2
