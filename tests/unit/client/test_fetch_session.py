"""What a client names in the requests of a fetch session."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.client.fetch_session import FetchSession
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchResponse
from pyspark_kafkalog.types import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def named(session: FetchSession, **offsets: int) -> tuple[int, int, dict[str, int], list[str]]:
    """Session id, epoch, what is asked for and what is forgotten, by letters; unchanged wants are kept."""
    letters = {"a": A, "b": B, "c": C}
    wanted = {}
    for letter, offset in offsets.items():
        partition = letters[letter]
        kept = session.kept(partition)
        same = kept is not None and kept.fetch_offset == offset
        new = FetchPartition(partition=partition.partition, fetch_offset=offset)
        wanted[partition] = kept if same and kept is not None else new
    fields: dict[str, Any] = session.next(wanted)
    by_number = dict(zip(range(3), letters, strict=True))
    asked = {by_number[one.partition]: one.fetch_offset for t in fields["topics"] for one in t.partitions}
    gone = [by_number[number] for t in fields["forgotten_topics_data"] for number in t.partitions]
    return fields["session_id"], fields["session_epoch"], asked, gone


def test_after_a_full_request_only_changes_are_named() -> None:
    session = FetchSession()
    assert named(session, a=0, b=0) == (0, 0, {"a": 0, "b": 0}, [])
    assert session.answered(FetchResponse(session_id=7))
    assert named(session, a=0, b=5) == (7, 1, {"b": 5}, [])
    assert session.answered(FetchResponse(session_id=7))
    assert named(session, b=5, c=1) == (7, 2, {"c": 1}, ["a"])
    assert session.answered(FetchResponse(session_id=7))
    assert named(session, b=5, c=1) == (7, 3, {}, [])


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_session_that_is_over_begins_again_with_a_full_request(code: ErrorCode) -> None:
    session = FetchSession()
    named(session, a=0)
    session.answered(FetchResponse(session_id=7))
    named(session, a=0)
    assert not session.answered(FetchResponse(error_code=code))
    assert named(session, a=0) == (7, 0, {"a": 0}, [])
    session.answered(FetchResponse(session_id=8))
    assert named(session, a=0) == (8, 1, {}, [])


def test_what_was_not_answered_is_named_again() -> None:
    session = FetchSession()
    named(session, a=0)
    session.answered(FetchResponse(session_id=7))
    named(session, a=3, b=0)
    session.lost()
    assert named(session, a=3, b=0) == (7, 0, {"a": 3, "b": 0}, [])
    assert session.answered(FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert named(session, b=0) == (7, 0, {"b": 0}, [])


def test_a_broker_without_sessions_gets_full_requests() -> None:
    session = FetchSession()
    for _ in range(2):
        assert named(session, a=0, b=0) == (0, 0, {"a": 0, "b": 0}, [])
        assert session.answered(FetchResponse())


def test_the_epoch_after_the_largest_is_1() -> None:
    session = FetchSession()
    named(session, a=0)
    session.answered(FetchResponse(session_id=7))
    session._epoch = 0x7FFFFFFF
    assert named(session, a=0)[1] == 0x7FFFFFFF
    session.answered(FetchResponse(session_id=7))
    assert named(session, a=0)[1] == 1
