"""Classic members of groups of the newer protocol, and groups that change from one protocol to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.groups.classic_rules import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from kafkalog_broker.groups.consumer_group import Client, ConsumerGroup, ConsumerGroupSettings
from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.groups.group_records import RecordKey, RecordKind, build, changes
from kafkalog_broker.logs.offset_records import CommittedOffset
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from pyspark_kafkalog.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    grouped,
)
from pyspark_kafkalog.types import TopicPartition
from tests.support.group.coordinators import Coordinators

SESSION_MS, REBALANCE_MS = 20_000, 30_000
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


class Bench(Coordinators):
    """A topic ``a`` of two partitions, and a group ``g``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, partitions=2)
        self.create("a")
        self.restart()

    def joining(self, member: str = "", *owned: int, **other: Any) -> list[JoinAnswer]:
        """The answers, in a list that those to come are added to."""
        answers: list[JoinAnswer] = []
        rows = grouped(TopicPartition("a", number) for number in owned)
        fields: dict[str, Any] = {
            "member_id": member, "new_id": "c", "instance_id": None, "client_id": "id",
            "client_host": "/h", "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer", "names_first": False, "can_skip": True,
            "protocols": (("range", encode_subscription(Subscription(("a",), owned_partitions=rows))),),
        }  # fmt: skip
        self.groups.join("g", JoinRequest(**fields | other), answers.append)
        return answers

    def join(self, member: str = "", *owned: int, **other: Any) -> int:
        """The generation that a member gets at once."""
        (answer,) = self.joining(member, *owned, **other)
        assert answer.error is ErrorCode.NONE
        return answer.generation

    def sync(self, member: str, generation: int, **assignments: tuple[int, ...]) -> Any:
        """The partitions that a member gets at once, or else a code."""
        answers: list[SyncAnswer] = []
        given = {
            m: encode_assignment(TopicPartition("a", number) for number in numbers)
            for m, numbers in assignments.items()
        }
        try:
            self.groups.sync("g", SyncRequest(member, None, generation, None, None, given), answers.append)
        except KafkaError as e:
            return e.code
        (answer,) = answers
        return [p.partition for p in decode_assignment(answer.assignment)] or answer.error

    def hears(self, member: str, generation: int) -> ErrorCode:
        try:
            return self.groups.heartbeat("g", member, None, generation)
        except KafkaError as e:
            return e.code

    def beat(self, member: str, epoch: int = 0, *owned: int, **fields: Any) -> tuple[int, list[int] | None]:
        """The epoch and the assignment of a member of the newer protocol."""
        if epoch == 0:
            fields |= {"subscribed_topic_names": ("a",), "rebalance_timeout_ms": REBALANCE_MS}
        topics = (TopicPartitions(self.logs.topics["a"].topic_id, owned),) if owned else ()
        request = ConsumerGroupHeartbeatRequest("g", member, epoch, topic_partitions=topics, **fields)
        found = self.groups.consumers.heartbeat(request, Client("c", "/h", 1, lambda _: True))
        given = None if found.assignment is None else sorted(number for _, number in found.assignment)
        return found.epoch, given

    def two_classic(self) -> None:
        """A stable classic group of c and d, with a partition each, in generation 2."""
        self.join()
        first = self.joining(new_id="d")
        self.joining("c")
        assert [answer.generation for answer in first] == [2]
        answers: list[SyncAnswer] = []
        self.groups.sync("g", SyncRequest("d", None, 2, None, None, {}), answers.append)
        assert self.sync("c", 2, c=(0,), d=(1,)) == [0]
        assert len(answers) == 1

    @property
    def group(self) -> ConsumerGroup:
        return self.groups.consumers.get("g")

    def kind(self) -> str:
        (found,) = self.groups.groups()
        return found.kind


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_classic_group_continues_as_one_of_the_newer_protocol_also_after_a_restart(bench: Bench) -> None:
    assert bench.join() == 1
    assert bench.sync("c", 1, c=(0, 1)) == [0, 1]
    assert bench.beat("m") == (2, [])
    before = bench.group
    assert {m: p.epoch for m, p in before.progress.items()} == {"c": 1, "m": 2}
    bench.restart()
    assert (bench.group, bench.kind()) == (before, "consumer")
    assert [bench.hears("c", 1), bench.sync("c", 1)] == [AGAIN] * 2
    assert bench.join("c", 0, 1) == 1
    (kept,) = bench.sync("c", 1)
    assert bench.beat("m", 2) == (2, None)
    assert bench.hears("c", 1) is AGAIN
    assert bench.join("c", kept) == 2
    assert (bench.sync("c", 2), bench.hears("c", 2)) == ([kept], ErrorCode.NONE)
    assert bench.beat("m", 2) == (2, [1 - kept])


def test_clients_that_wait_in_the_classic_group_are_told_to_join_again(bench: Bench) -> None:
    bench.join()
    waiting = bench.joining(new_id="d")
    assert waiting == []
    bench.beat("m")
    assert [answer.error for answer in waiting] == [AGAIN]
    assert list(bench.group.members) == ["c", "d", "m"]


def test_the_group_is_classic_again_when_the_last_newer_member_leaves(bench: Bench) -> None:
    bench.beat("m")
    assert bench.join() == 2
    assert bench.sync("c", 2) is ErrorCode.NONE
    assert bench.beat("m", 1)[1] == [0]
    assert bench.beat("m", 1, 0)[0] == 2
    assert bench.hears("c", 2) is AGAIN
    assert bench.join("c") == 2
    assert bench.sync("c", 2) == [1]
    bench.beat("m", -1)
    for _ in range(2):
        assert bench.kind() == "classic"
        with pytest.raises(NoSuchGroup):
            bench.groups.consumers.get("g")
        bench.restart()
    assert bench.join("c") == 3
    assert bench.sync("c", 3, c=(0, 1)) == [0, 1]
    bench.advance(SESSION_MS / 1000 + 1)
    assert bench.groups.describe("g").state == "Empty"


def test_a_silent_newer_member_makes_the_group_classic_too(bench: Bench) -> None:
    bench.beat("m")
    bench.join()
    bench.sync("c", 2)
    for _ in range(5):
        bench.advance(10)
        bench.hears("c", 2)
        if bench.kind() == "consumer":
            bench.join("c")
            bench.sync("c", 2)
    assert bench.kind() == "classic"
    assert list(bench.groups.describe("g").members[0].member_id) == ["c"]


def test_sessions_and_due_answers_of_classic_members_end(bench: Bench) -> None:
    def present() -> set[str]:
        bench.beat("m", bench.group.progress["m"].epoch)
        return set(bench.group.members)

    bench.beat("m")
    bench.join(session_timeout_ms=SESSION_MS)
    bench.advance(REBALANCE_MS / 1000 - 10)
    assert present() == {"m"}  # the session
    bench.join(session_timeout_ms=60_000)
    bench.advance(REBALANCE_MS / 1000 - 1)
    assert present() == {"m", "c"}
    bench.advance(2)
    assert present() == {"m"}  # it has not synced
    epoch = bench.join(session_timeout_ms=60_000)
    assert bench.sync("c", epoch) is ErrorCode.NONE
    bench.advance(REBALANCE_MS / 1000 + 1)
    assert present() == {"m", "c"}
    bench.beat("n")
    assert bench.hears("c", epoch) is AGAIN
    bench.advance(REBALANCE_MS / 1000 - 1)
    assert "c" in present()
    bench.advance(2)
    assert "c" not in present()  # it has not joined again


def test_static_members_come_back_by_either_protocol(bench: Bench) -> None:
    bench.beat("m")
    generation = bench.join(instance_id="i")
    assert bench.join(new_id="c2", instance_id="i") == generation
    assert set(bench.group.members) == {"m", "c2"}
    (fenced,) = bench.joining("c", instance_id="i")
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID
    assert bench.beat("n", instance_id="i")[0] == generation
    assert bench.group.members["n"].classic is None
    assert set(bench.group.members) == {"m", "n"}
    assert bench.groups.leave("g", [("", "i"), ("x", None)]) == [
        ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID,
    ]  # fmt: skip


def test_classic_members_share_a_protocol(bench: Bench) -> None:
    bench.beat("m")
    metadata = encode_subscription(Subscription(("a",)))
    bench.join(protocols=(("range", metadata), ("sticky", metadata)))
    for kind, names in (("consumer", ("other",)), ("connect", ("range",)), ("consumer", ())):
        (refused,) = bench.joining(
            new_id="d", protocol_type=kind, protocols=tuple((name, metadata) for name in names)
        )
        assert refused == JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    bench.join(new_id="d", protocols=(("sticky", metadata),))
    bench.beat("m", -1)
    assert bench.groups.describe("g").state == "PreparingRebalance"
    bench.joining("c", protocols=(("range", metadata), ("sticky", metadata)))
    (answer,) = bench.joining("d", protocols=(("sticky", metadata),))
    assert (answer.error, answer.protocol) == (ErrorCode.NONE, "sticky")


def test_classic_members_commit_in_their_generation(bench: Bench) -> None:
    bench.beat("m")
    generation = bench.join()

    def commit(at: int, version: int = 8) -> None:
        bench.groups.offsets.commit(
            "g", {TopicPartition("a", 0): CommittedOffset(5)}, member_id="c", generation=at, version=version
        )

    commit(generation)
    with pytest.raises(KafkaError) as stale:
        commit(generation - 1)
    assert stale.value.code is ErrorCode.ILLEGAL_GENERATION
    assert bench.groups.offsets.fetch("g")[TopicPartition("a", 0)].offset == 5


@pytest.mark.parametrize(("upgrades", "downgrades"), [(False, True), (True, False)])
def test_the_policy_forbids_either_way(bench: Bench, upgrades: bool, downgrades: bool) -> None:
    bench.groups.consumers.settings = ConsumerGroupSettings(upgrades=upgrades, downgrades=downgrades)
    bench.two_classic()
    if not upgrades:
        with pytest.raises(NoSuchGroup, match=r"group\.consumer\.migration\.policy"):
            bench.beat("m")
        assert bench.kind() == "classic"
        return
    bench.beat("m")
    bench.beat("m", -1)
    assert (bench.kind(), set(bench.group.members)) == ("consumer", {"c", "d"})
    assert bench.join("c") == 4


@pytest.mark.parametrize(
    ("kind", "assignment", "why"),
    [
        ("connect", b"", "its protocol type is 'connect'"),
        ("consumer", b"\0\1\0\0\0\0\0\0\0\1u", "the assignment of member c has user data"),
        ("consumer", b"\0", "Assignment: 1 bytes have no version"),
    ],
)
def test_a_group_that_cannot_be_upgraded_stays_classic(
    bench: Bench, kind: str, assignment: bytes, why: str
) -> None:
    bench.joining(protocol_type=kind)
    bench.groups.sync("g", SyncRequest("c", None, 1, None, None, {"c": assignment}), lambda _: None)
    with pytest.raises(NoSuchGroup, match=why):
        bench.beat("m")
    assert (bench.kind(), bench.hears("c", 1)) == ("classic", ErrorCode.NONE)


def test_what_the_log_refuses_has_not_happened(bench: Bench) -> None:
    bench.two_classic()
    bench.files.space_bytes = 0
    with pytest.raises(KafkaError):
        bench.beat("m")
    assert bench.kind() == "classic"
    assert bench.hears("c", 2) is ErrorCode.NONE
    bench.files.space_bytes = None
    bench.beat("m")
    bench.files.space_bytes = 0
    with pytest.raises(KafkaError):
        bench.beat("m", -1)
    assert (bench.kind(), set(bench.group.members)) == ("consumer", {"c", "d", "m"})


CLASSIC = bytes.fromhex(
    "00000000047261770b2f3132372e302e302e3102066e6577657201000027100001004601000027100206"
    "72616e67653800030000000100216e657765722d6d656d626572732d6f662d636c61737369632d67726f7570732d30"
    "ffffffff00000000ffffffffffff0000"
)
NEWER = bytes.fromhex("00000000047261770b2f3132372e302e302e3102066e65776572010000ea600001000100")


def test_members_are_read_as_kafka_stores_them() -> None:
    """Values of Kafka 4.1.1, the topic's name in the first part of each shortened."""
    group = build(
        "g",
        {
            RecordKey(RecordKind.EPOCH, "g"): bytes.fromhex("00000000000100"),
            RecordKey(RecordKind.MEMBER, "g", "c"): CLASSIC,
            RecordKey(RecordKind.MEMBER, "g", "m"): NEWER,
        },
    )
    assert group is not None
    classic = group.members["c"].classic
    assert classic is not None
    assert (classic.session_timeout_ms, [name for name, _ in classic.protocols]) == (10_000, ["range"])
    assert group.members["c"].rebalance_timeout_ms == 10_000
    assert (group.members["m"].classic, group.members["m"].names) == (None, ("newer",))
    ours = {key.item: data for key, data in changes(None, group) if key.kind is RecordKind.MEMBER}
    # Kafka writes an empty pattern where we write null.
    assert ours["c"] == CLASSIC.replace(b"newer\1\0", b"newer\0\0", 1)
