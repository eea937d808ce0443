"""The codes of the newer protocol's heartbeats, commits and fetches, and rebalances step by step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kafkalog_broker.groups.consumer_group import (
    Client,
    ConsumerGroup,
    ConsumerGroupSettings,
    check_commit,
    check_fetch,
    check_request,
    expired,
    heartbeat,
    matched_patterns,
)
from kafkalog_broker.groups.group_records import (
    RecordKey,
    RecordKind,
    build,
    changes,
    decode_key,
    encode_key,
)
from kafkalog_broker.groups.server_assignors import EMPTY, Subscriber, by_topic, range_, uniform
from kafkalog_broker.groups.topic_patterns import matching
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import CorruptMessage, ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions

A, B = UUID(int=1), UUID(int=2)
TOPICS = {"a": StoredTopic(A, (0, 1, 2, 3)), "b": StoredTopic(B, (0, 1))}
SETTINGS = ConsumerGroupSettings(max_size=3)
NONE = ErrorCode.NONE


class Driver:
    """A group, and short ways to send it heartbeats."""

    def __init__(self) -> None:
        self.group = ConsumerGroup("g")
        self.now = 0

    def send(self, member: str, epoch: int, owned: list[int] | None = None, **fields: Any) -> Any:
        """The epoch after it, and the partitions of topic a that were sent, or None; or the error's code."""
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            topic_partitions=None if owned is None else (TopicPartitions(A, tuple(owned)),) if owned else (),
            **fields,
        )
        try:
            check_request(request, 1, SETTINGS)
            self.group, sent = heartbeat(
                self.group, request, Client("c", "/h", 1, lambda _: True), TOPICS, SETTINGS, self.now
            )
        except ServerError as e:
            return e.code
        if epoch < 0:
            return epoch, None
        return self.group.progress[member].epoch, None if sent is None else sorted(p for _, p in sent)

    def join(self, member: str, **fields: Any) -> Any:
        return self.send(
            member,
            0,
            [],
            **{"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("a",), **fields},
        )


@pytest.fixture
def group() -> Driver:
    return Driver()


def test_the_second_member_gets_its_half_once_the_first_has_released_it(group: Driver) -> None:
    assert group.join("m1") == (1, [0, 1, 2, 3])
    assert group.join("m2") == (2, [])
    assert group.group.state == "Reconciling"
    assert group.send("m1", 1) == (1, [0, 1])
    assert group.send("m1", 1) == (1, None)
    assert group.send("m2", 2) == (2, None)
    assert group.send("m1", 1, [0, 1]) == (2, None)
    assert group.send("m2", 2) == (2, [2, 3])
    assert group.group.state == "Stable"
    assert group.send("m2", -1) == (-1, None)
    assert group.group.state == "Assigning"
    assert group.send("m1", 2) == (3, [0, 1, 2, 3])
    assert group.group.state == "Stable"


@pytest.mark.parametrize(
    "fields",
    [
        {"member": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None},
        {"epoch": -3},
        {"epoch": -2},
        {"owned": None},
        {"owned": [1]},
    ],
)
def test_heartbeats_that_make_no_sense_are_invalid(group: Driver, fields: dict[str, Any]) -> None:
    member, epoch = fields.pop("member", "m1"), fields.pop("epoch", 0)
    owned = fields.pop("owned", [])
    fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("a",), **fields}
    assert group.send(member, epoch, owned, **fields) is ErrorCode.INVALID_REQUEST


def test_a_member_may_join_before_it_knows_any_topic(group: Driver) -> None:
    """As Java's client does with an expression that it compares itself."""
    assert group.join("m1", subscribed_topic_names=()) == (1, [])
    assert group.send("m1", 1, subscribed_topic_names=("a",)) == (2, [0, 1, 2, 3])


def test_assignors_and_expressions_that_are_not_known_are_refused(group: Driver) -> None:
    assert group.join("m1", server_assignor="sticky") is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert group.join("m1", subscribed_topic_regex="a(") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert group.join("m1", subscribed_topic_regex=r"(a)\1") is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_epochs_of_another_time_are_fenced_but_for_a_lost_answer(group: Driver) -> None:
    assert group.send("m1", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    group.join("m1")
    group.join("m2")
    group.send("m1", 1)
    assert group.send("m1", 1, [0, 1]) == (2, None)
    assert group.send("m1", 3) is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.send("m1", 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.send("m1", 1, [0, 1, 2]) is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.send("m1", 1, [0]) == (2, None)


def test_a_static_member_that_is_back_soon_keeps_its_assignment(group: Driver) -> None:
    static = {"instance_id": "i"}
    assert group.join("m1", **static) == (1, [0, 1, 2, 3])
    assert group.join("m2", **static) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert group.send("m2", 1, **static) is ErrorCode.FENCED_INSTANCE_ID
    assert group.send("m3", 1, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.send("m1", -2, **static) == (-2, None)
    assert group.join("m9") == (2, [])
    assert group.join("m2", **static) == (2, [0, 1])
    assert group.send("m1", 1, **static) is ErrorCode.FENCED_INSTANCE_ID
    assert group.send("m1", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_goes_with_its_session(group: Driver) -> None:
    group.join("m1", instance_id="i")
    group.now = 10_000
    group.send("m1", -2, instance_id="i")
    assert group.group.deadline == 45_000
    assert expired(group.group, 44_999) is group.group
    assert not expired(group.group, 45_000).members


def test_a_member_that_does_not_release_in_time_is_expelled(group: Driver) -> None:
    group.join("m1", rebalance_timeout_ms=5_000)
    group.now = 1_000
    group.join("m2")
    group.now = 2_000
    group.send("m1", 1)
    assert group.group.deadline == 7_000
    group.group = expired(group.group, 7_000)
    assert list(group.group.members) == ["m2"]
    assert group.send("m2", 2) == (3, [0, 1, 2, 3])


def test_a_full_group_refuses_members(group: Driver) -> None:
    for number in range(3):
        group.join(f"m{number}")
    assert group.join("m3") is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_commit_and_fetch_with_their_epoch(group: Driver) -> None:
    def code(check: Any, *args: Any) -> ErrorCode:
        try:
            check(group.group, *args)
        except ServerError as e:
            return e.code
        return NONE

    assert code(check_commit, "", -1, 8) is NONE
    group.join("m1")
    assert code(check_commit, "", -1, 9) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(check_commit, "m1", 1, 8) is ErrorCode.UNSUPPORTED_VERSION
    assert code(check_commit, "m1", 0, 9) is ErrorCode.STALE_MEMBER_EPOCH
    assert code(check_commit, "m1", 1, 9) is NONE
    assert code(check_fetch, None, -1) is NONE
    assert code(check_fetch, "m1", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert code(check_fetch, "m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(check_fetch, "m1", 1) is NONE


def test_a_pattern_counts_once_it_was_matched(group: Driver) -> None:
    assert group.join("m1", subscribed_topic_names=None, subscribed_topic_regex="a|x") == (1, [])
    assert group.group.unmatched(TOPICS, SETTINGS, 5) == {"a|x"}
    found = {"a|x": matching("a|x", [*TOPICS, "aa", "xa"])}
    group.group = matched_patterns(group.group, found, TOPICS, 5)
    assert group.group.unmatched(TOPICS, SETTINGS, 5) == frozenset()
    assert group.group.unmatched(dict(TOPICS), SETTINGS, 5) == {"a|x"}
    due = 5 + SETTINGS.regex_refresh_interval_ms
    assert group.group.unmatched(TOPICS, SETTINGS, due - 1) == frozenset()
    assert group.group.unmatched(TOPICS, SETTINGS, due) == {"a|x"}
    assert group.group.unmatched(TOPICS, SETTINGS, 4) == {"a|x"}  # the clock was set back
    assert group.send("m1", 1) == (2, [0, 1, 2, 3])
    assert group.send("m1", 2, subscribed_topic_regex="", subscribed_topic_names=("b",)) == (2, [])
    assert group.group.patterns == {}


def test_the_stored_keys_and_values_have_kafkas_layout(group: Driver) -> None:
    group.join("m")
    stored = {encode_key(key): value for key, value in changes(None, group.group)}
    assert list(stored) == [
        b"\0\x05\0\x01g\0\x01m",
        b"\0\x04\0\x01g",
        b"\0\x03\0\x01g",
        b"\0\x07\0\x01g\0\x01m",
        b"\0\x06\0\x01g",
        b"\0\x08\0\x01g\0\x01m",
    ]
    assert stored[b"\0\x03\0\x01g"] == b"\0\0" + b"\0\0\0\x01" + b"\0"
    partitions = b"\x02" + A.bytes + b"\x05" + bytes([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]) + b"\0"
    assert stored[b"\0\x07\0\x01g\0\x01m"] == b"\0\0" + partitions + b"\0"
    assert stored[b"\0\x08\0\x01g\0\x01m"] == (
        b"\0\0" + b"\0\0\0\x01" + b"\0\0\0\0" + b"\0" + partitions + b"\x01" + b"\0"
    )
    member = b"\0\0" + b"\0\0" + b"\x02c\x03/h" + b"\x02\x02a" + b"\0" + b"\0\0\xea\x60" + b"\0\0"
    assert stored[b"\0\x05\0\x01g\0\x01m"] == member
    assert [value for _, value in changes(group.group, None)] == [None] * 6
    assert [key.kind for key, _ in changes(group.group, None)] == [8, 7, 5, 6, 4, 3]


def test_keys_and_values_that_are_cut_are_corrupt() -> None:
    assert decode_key(b"\0\x02\0\x01g") is None
    for data in (b"\0", b"\0\x03", b"\0\x03\0\x02g", b"\0\x05\0\x01g\0", b"\0\x03\0\x01\xff"):
        with pytest.raises(CorruptMessage):
            decode_key(data)
    for data in (b"", b"\0\x07\0\0\0\0\0", b"\0\0\0\0"):
        with pytest.raises(CorruptMessage):
            build("g", {RecordKey(RecordKind.EPOCH, "g"): data})


def test_range_gives_static_members_first_and_each_the_same_range_of_all_topics() -> None:
    def who(instance: str | None, *topics: UUID) -> Subscriber:
        return Subscriber(instance, frozenset(topics), EMPTY)

    found = range_({"m1": who(None, A, B), "m2": who("z", A, B), "m3": who(None, A)}, {A: 4, B: 4})
    assert {m: by_topic(a) for m, a in found.items()} == {
        "m2": [(A, (0, 1)), (B, (0, 1))],
        "m1": [(A, (2,)), (B, (2, 3))],
        "m3": [(A, (3,))],
    }


def test_uniform_moves_no_more_than_it_must() -> None:
    nothing = Subscriber(None, frozenset({A}), EMPTY)
    first = uniform({"m1": nothing, "m2": nothing}, {A: 5})
    assert [sorted(p for _, p in first[m]) for m in ("m1", "m2")] == [[0, 1, 2], [3, 4]]
    second = uniform(
        {"m0": nothing, **{m: Subscriber(None, frozenset({A}), first[m]) for m in first}}, {A: 5}
    )
    assert [sorted(p for _, p in second[m]) for m in ("m0", "m1", "m2")] == [[2], [0, 1], [3, 4]]


def test_uniform_evens_out_unequal_subscriptions() -> None:
    both = Subscriber(None, frozenset({A, B}), frozenset((A, p) for p in range(4)))
    only_a = Subscriber(None, frozenset({A}), EMPTY)
    found = uniform({"m1": both, "m2": only_a}, {A: 4, B: 2})
    assert sorted(len(a) for a in found.values()) == [3, 3]
    assert {(B, 0), (B, 1)} <= found["m1"]
