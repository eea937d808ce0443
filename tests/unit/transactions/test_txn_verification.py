"""What is known of other coordinators' transactions: what a marker ends, whatever answers still come."""

from __future__ import annotations

import threading
import time

import pytest

from kafkalog_broker.transactions.cluster_transactions import TxnVerification
from pyspark_kafkalog.errors import InvalidTxnState
from pyspark_kafkalog.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def may_write(known: TxnVerification, partition: TopicPartition, producer: int, epoch: int) -> bool:
    try:
        with known.writing(partition, producer, epoch):
            return True
    except InvalidTxnState:
        return False


def test_only_what_the_coordinator_has_confirmed_is_written() -> None:
    known = TxnVerification()
    assert known.unknown(1, 0, [A, B]) == [A, B]
    asked = known.asking(1, 0, [A, B])
    assert not may_write(known, A, 1, 0)
    asked[A].is_in = True
    assert known.unknown(1, 0, [A, B]) == [B]
    assert [may_write(known, each, 1, 0) for each in (A, B)] == [True, False]
    assert not may_write(known, A, 1, 1)
    assert known.unknown(1, 1, [A]) == [A], "the next epoch is asked about anew"
    assert not may_write(known, A, 2, 0)


def test_an_answer_that_comes_after_the_marker_counts_no_more() -> None:
    known = TxnVerification()
    late = known.asking(1, 0, [A])[A]
    with known.ending(A, 1):
        pass
    late.is_in = True
    assert not may_write(known, A, 1, 0)
    again = known.asking(1, 0, [A])[A]
    again.is_in = True
    assert may_write(known, A, 1, 0)


def test_two_questions_at_once_are_one() -> None:
    known = TxnVerification()
    first, second = (known.asking(1, 0, [A])[A] for _ in range(2))
    first.is_in = True
    assert first is second
    assert may_write(known, A, 1, 0)


def test_a_marker_waits_for_the_batch_that_is_being_written() -> None:
    known = TxnVerification()
    known.asking(1, 0, [A])[A].is_in = True
    order: list[str] = []

    def end() -> None:
        with known.ending(A, 1):
            order.append("marker")

    with known.writing(A, 1, 0):
        ending = threading.Thread(target=end)
        ending.start()
        time.sleep(0.05)  # long enough for who does not wait
        order.append("batch")
    ending.join()
    assert order == ["batch", "marker"]


def test_the_oldest_are_forgotten_and_asked_about_again() -> None:
    known = TxnVerification(remembered=2)
    for producer in (1, 2, 3):
        known.asking(producer, 0, [A])[A].is_in = True
    assert [known.unknown(producer, 0, [A]) for producer in (1, 2, 3)] == [[A], [], []]
    with pytest.raises(InvalidTxnState, match="t-0 is not part of an open transaction of producer 1"):
        known.writing(A, 1, 0).__enter__()
