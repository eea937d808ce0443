"""Which fetch sessions are kept, and what brings one forward."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.security.authentication import ANONYMOUS, Principal
from kafkalog_broker.server import fetch_sessions
from kafkalog_broker.server.fetch_sessions import FetchSession, FetchSessions, Wanted
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.support.manual_clock import ManualClock

SOMEBODY = Principal("User", "somebody")


def topics(*numbers: int) -> Sequence[tuple[str, FetchTopic]]:
    wants = tuple(FetchPartition(partition=number) for number in numbers)
    return [("t", FetchTopic(topic="t", partitions=wants))]


def opened(sessions: FetchSessions, count: int) -> int:
    ((name, topic),) = topics(*range(count))
    wanted = [Wanted.of(name, topic, want) for want in topic.partitions]
    return sessions.open(ANONYMOUS, wanted, has_ids=False)


def go_on(
    sessions: FetchSessions,
    number: int,
    epoch: int,
    *numbers: int,
    forgotten: tuple[int, ...] = (),
    owner: Principal = ANONYMOUS,
    has_ids: bool = False,
) -> FetchSession | None:
    gone = (ForgottenTopic(topic="t", partitions=forgotten),)
    request = FetchRequest(session_id=number, session_epoch=epoch, forgotten_topics_data=gone)
    return sessions.go_on(request, owner, topics(*numbers), has_ids=has_ids)


def test_a_request_adds_partitions_and_forgets_others() -> None:
    sessions = FetchSessions(10, ManualClock(), Metrics())
    number = opened(sessions, 3)
    assert go_on(sessions, number, 1, 2, 7, forgotten=(0, 9)) is not None
    session = go_on(sessions, number, 2)
    assert session is not None
    assert [partition for _, _, partition in session.wanted] == [1, 2, 7]
    assert go_on(sessions, number, 3, forgotten=(1, 2, 7)) is None
    assert len(sessions) == 0


@pytest.mark.parametrize(
    ("epoch", "how", "code"),
    [
        (2, {}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, {"has_ids": True}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (1, {"owner": SOMEBODY}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_a_request_that_does_not_fit_leaves_the_session_as_it_was(
    epoch: int, how: dict[str, object], code: ErrorCode
) -> None:
    sessions = FetchSessions(10, ManualClock(), Metrics())
    number = opened(sessions, 3)
    with pytest.raises(ServerError) as refused:
        go_on(sessions, number, epoch, 7, **how)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert sessions.size_of(number) == 3
    sessions.close(number, SOMEBODY)
    assert go_on(sessions, number, 1) is not None
    sessions.close(number, ANONYMOUS)
    assert len(sessions) == 0


def test_the_epoch_after_the_largest_is_1() -> None:
    sessions = FetchSessions(10, ManualClock(), Metrics())
    number = opened(sessions, 1)
    session = go_on(sessions, number, 1)
    assert session is not None
    session.epoch = 0x7FFFFFFF
    assert go_on(sessions, number, 0x7FFFFFFF) is session
    assert session.epoch == 1


def test_a_session_that_was_idle_gives_way_and_an_old_one_to_a_larger_one() -> None:
    clock = ManualClock()
    metrics = Metrics()
    sessions = FetchSessions(2, clock, metrics)
    first, second = opened(sessions, 5), opened(sessions, 3)
    clock.advance(120)
    assert opened(sessions, 100) == 0
    assert go_on(sessions, first, 1) is not None
    clock.advance(1)
    third = opened(sessions, 1)
    assert third
    assert (sessions.size_of(first), sessions.size_of(second)) == (5, 0)
    assert opened(sessions, 5) == 0
    assert opened(sessions, 6)
    assert (sessions.size_of(first), sessions.size_of(third)) == (0, 1)
    shown = {
        name: metrics.registry.get_sample_value(f"kafkalog_broker_fetch_session{name}")
        for name in ("s", "_partitions", "_evictions_total")
    }
    assert shown == {"s": 2, "_partitions": 7, "_evictions_total": 2}


def test_there_are_none_without_slots_and_their_partitions_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert opened(FetchSessions(0, ManualClock(), Metrics()), 1) == 0
    monkeypatch.setattr(fetch_sessions, "_MOST_PARTITIONS", 5)
    sessions = FetchSessions(10, ManualClock(), Metrics())
    number = opened(sessions, 3)
    assert opened(sessions, 3) == 0
    assert opened(sessions, 2)
    with pytest.raises(ServerError) as refused:
        go_on(sessions, number, 1, 3)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions, 3)
