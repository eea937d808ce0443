from __future__ import annotations

import pytest

from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    ServerError,
    UnknownTopicOrPartition,
    error_for,
    reason,
)
from tests.support.manual_clock import ManualClock


def _attempts(clock: ManualClock, seconds: float, policy: RetryPolicy | None = None) -> Attempts:
    return Attempts(policy or RetryPolicy(), Deadline.after(seconds, clock), doing="testing", clock=clock)


def _fail_until_it_raises(attempts: Attempts, error: KafkaError) -> None:
    for _ in range(100):
        attempts.failed(error)


def test_a_deadline_counts_down_to_zero_and_is_never_later() -> None:
    clock = ManualClock()
    deadline = Deadline.after(2.0, clock)
    assert (deadline.left, deadline.passed) == (2.0, False)
    assert (deadline.within(5.0).left, deadline.within(0.5).left) == pytest.approx((2.0, 0.5))
    clock.advance(1.5)
    assert deadline.left == pytest.approx(0.5)
    clock.advance(1.0)
    assert (deadline.left, deadline.passed) == (0.0, True)


def test_the_wait_doubles_up_to_its_limit_and_varies_by_a_fifth() -> None:
    policy = RetryPolicy(backoff_ms=100, backoff_max_ms=1000)
    for failures, middle in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (5000, 1.0)):
        waits = [policy.backoff(failures) for _ in range(200)]
        assert 0.8 * middle <= min(waits) < max(waits) <= 1.2 * middle


def test_a_transaction_that_is_just_ending_is_asked_for_again_at_once() -> None:
    policy, ending = RetryPolicy(backoff_ms=100), ServerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    for failures, middle in ((1, 0.02), (2, 0.04), (3, 0.08), (100, 1.0)):
        assert policy.again(ending, failures) == pytest.approx(middle, rel=0.21)
    assert RetryPolicy(backoff_ms=5).again(ending, 1) == pytest.approx(0.005, rel=0.21)


def test_a_final_error_is_raised_as_it_is_and_at_once() -> None:
    clock = ManualClock(monotonic=0)
    error = InvalidRequest("nonsense")
    with pytest.raises(InvalidRequest) as raised:
        _attempts(clock, 10).failed(error)
    assert raised.value is error
    assert clock.monotonic() == 0


def test_a_passing_error_is_waited_for_until_there_is_no_time() -> None:
    clock = ManualClock(monotonic=0)
    attempts = _attempts(clock, 2.0)
    with pytest.raises(ConnectionLost, match=r"testing: timed out after \d+ attempt\(s\); last error: gone"):
        _fail_until_it_raises(attempts, ConnectionLost("gone"))
    assert 3 <= attempts.failures <= 7
    assert clock.monotonic() <= 2.0


def test_an_error_of_another_kind_before_the_last_is_reported_as_well() -> None:
    clock = ManualClock(monotonic=0)
    attempts = _attempts(clock, 0.2)  # the first wait is 0.12 s or less, the second 0.16 s or more
    attempts.failed(ServerError(ErrorCode.LEADER_NOT_AVAILABLE, "wait"))
    with pytest.raises(
        ConnectionLost, match=r"timed out after 2 attempt\(s\); last error: late; before that: .*: wait$"
    ):
        attempts.failed(ConnectionLost("late"))


def test_retries_bound_the_attempts() -> None:
    attempts = _attempts(ManualClock(), 1000, RetryPolicy(max_retries=2))
    attempts.failed(ConnectionLost("1"))
    attempts.failed(ConnectionLost("2"))
    with pytest.raises(ConnectionLost, match="3"):
        attempts.failed(ConnectionLost("3"))


@pytest.mark.parametrize(
    "error", [UnknownTopicOrPartition("no such topic"), ServerError(ErrorCode.CORRUPT_MESSAGE)]
)
def test_what_settles_soon_is_not_waited_for_long(error: KafkaError) -> None:
    clock = ManualClock(monotonic=0)
    attempts = _attempts(clock, 3600)
    with pytest.raises(type(error)) as raised:
        _fail_until_it_raises(attempts, error)
    assert raised.value is error
    assert clock.monotonic() < 5


def test_after_a_success_the_next_failure_is_the_first_again() -> None:
    attempts = _attempts(ManualClock(), 3600)
    attempts.failed(ConnectionLost("1"))
    attempts.failed(ConnectionLost("2"))
    attempts.succeeded()
    assert attempts.failures == 0


def test_a_code_is_written_once_in_a_message() -> None:
    denied = error_for(ErrorCode.REBALANCE_IN_PROGRESS, "group 'g': REBALANCE_IN_PROGRESS")
    again = error_for(denied.code, f"reading: timed out; last error: {denied}")
    assert str(denied) == "group 'g': REBALANCE_IN_PROGRESS"
    assert str(again) == "reading: timed out; last error: group 'g': REBALANCE_IN_PROGRESS"
    assert str(error_for(ErrorCode.REBALANCE_IN_PROGRESS, "g")) == "REBALANCE_IN_PROGRESS: g"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "this needs Read on topic t"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "this needs Read on group g"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this needs Read on the cluster"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Not for you."),  # the caller has no id
        (ErrorCode.NOT_CONTROLLER, "Not for you."),
    ],
)
def test_a_refusal_names_the_missing_right(code: ErrorCode, why: str) -> None:
    assert reason(code, "Read", topic="t", group="g", said=f"{code.name}: Not for you.") == why
    assert error_for(code, why).retriable == (code == ErrorCode.NOT_CONTROLLER)
