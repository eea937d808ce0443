from __future__ import annotations

import threading

from pyspark_kafkalog.client.transactions import ProducerEpoch
from pyspark_kafkalog.producer.accumulator import PartitionQueue
from pyspark_kafkalog.producer.producer_batch import ProducerBatch
from pyspark_kafkalog.types import TopicPartition

TP = TopicPartition("t", 0)
OLD, NEW = ProducerEpoch(9, 0), ProducerEpoch(9, 1)


def batch(number: int, count: int = 1) -> ProducerBatch:
    made = ProducerBatch(TP, (number, 0), threading.Condition(), created=0, due=100, deadline=1000)
    for _ in range(count):
        made.add(b"v", None, 0, (), 17)
    return made


def queue_of(*counts: int) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = PartitionQueue(TP)
    batches = [batch(number, count) for number, count in enumerate(counts)]
    queue.waiting.extend(batches)
    return queue, batches


def sequences(batches: list[ProducerBatch]) -> list[tuple[int, int]]:
    return [(each.epoch, each.base_sequence) for each in batches]


def test_batches_are_numbered_when_they_are_taken() -> None:
    queue, batches = queue_of(3, 1, 5)
    assert [queue.take(OLD) for _ in range(3)] == batches
    assert sequences(batches) == [(0, 0), (0, 3), (0, 4)]
    assert queue.take(OLD) is None


def test_without_an_identity_batches_are_not_numbered_and_as_many_are_in_flight_as_are_allowed() -> None:
    queue, batches = queue_of(1, 1, 1)
    queue.take(None)
    assert queue.ready_at(1.0, 2, hurry=False) == 1.0
    queue.take(None)
    assert queue.ready_at(1.0, 2, hurry=False) is None
    assert sequences(batches[:2]) == [(-1, -1)] * 2


def test_sequences_begin_again_at_zero_after_the_largest() -> None:
    queue, batches = queue_of(3, 2)
    queue.identity, queue.next_sequence = OLD, 2**31 - 2
    queue.take(OLD)
    queue.take(OLD)
    assert sequences(batches) == [(0, 2**31 - 2), (0, 1)]


def test_failed_batches_are_repeated_in_order_and_one_by_one() -> None:
    queue, (first, second, third) = queue_of(1, 1, 1)
    for _ in range(3):
        queue.take(OLD)
    queue.repeat(second, not_before=5.0)
    queue.repeat(first, not_before=6.0)
    assert queue.ready_at(7.0, 5, hurry=False) is None, "the third is in flight"
    queue.remove_in_flight(third)
    assert queue.ready_at(1.0, 5, hurry=False) == 6.0
    assert queue.take(OLD) is first
    assert queue.ready_at(7.0, 5, hurry=False) is None
    queue.remove(first)
    assert queue.take(OLD) is second
    assert sequences([first, second]) == [(0, 0), (0, 1)]


def test_nothing_new_is_sent_while_something_is_to_be_repeated() -> None:
    queue, (first, second) = queue_of(1, 1)
    queue.take(OLD)
    queue.repeat(first, not_before=0.0)
    assert queue.take(OLD) is first
    assert queue.take(OLD) is second


def test_no_more_than_the_limit_is_in_flight() -> None:
    queue, _ = queue_of(1, 1, 1)
    queue.take(OLD)
    queue.take(OLD)
    queue.known = True
    assert queue.ready_at(0.0, 2, hurry=False) is None
    assert queue.ready_at(0.0, 3, hurry=False) == 0.0


def test_a_growing_batch_lingers_unless_there_is_hurry() -> None:
    queue = PartitionQueue(TP)
    queue.open = batch(0)
    assert queue.ready_at(1.0, 5, hurry=False) == 100
    assert queue.ready_at(1.0, 5, hurry=True) == 1.0
    assert queue.ready_at(101.0, 5, hurry=False) == 101.0


def test_new_numbers_begin_at_zero_once_nothing_is_in_flight() -> None:
    queue, (first, second, third, fourth) = queue_of(2, 3, 1, 1)
    for _ in range(3):
        queue.take(OLD)
    queue.repeat(second, not_before=0.0)
    queue.restarting = True
    assert queue.ready_at(0.0, 5, hurry=False) is None
    queue.remove(first)
    queue.repeat(third, not_before=0.0)
    assert [queue.take(NEW), queue.take(NEW), queue.take(NEW)] == [second, third, fourth]
    assert sequences([first, second, third, fourth]) == [(0, 0), (1, 0), (1, 3), (1, 4)]
    assert not queue.restarting


def test_another_identity_is_taken_up_between_batches_only() -> None:
    queue, (first, second, third) = queue_of(1, 1, 1)
    queue.take(OLD)
    queue.take(NEW)
    assert sequences([first, second]) == [(0, 0), (0, 1)]
    queue.remove(first)
    queue.remove(second)
    queue.take(NEW)
    assert sequences([third]) == [(1, 0)]


def test_a_batch_is_first_only_if_no_earlier_one_is_outstanding() -> None:
    queue, (first, second) = queue_of(1, 1)
    queue.take(OLD)
    queue.take(OLD)
    assert queue.is_first(first)
    assert not queue.is_first(second)
    queue.repeat(first, not_before=0.0)
    assert not queue.is_first(second)
    queue.remove(first)
    assert queue.is_first(second)


def test_the_last_epoch_has_none_after_it() -> None:
    assert OLD.next_epoch() == NEW
    assert ProducerEpoch(9, 2**15 - 1).next_epoch() is None


def test_a_split_keeps_every_records_number() -> None:
    queue, (whole, after) = queue_of(5, 1)
    queue.take(OLD)
    queue.take(OLD)
    parts = whole.split()
    assert [(part.base_sequence, part.count) for part in parts] == [(0, 2), (2, 3)]
    queue.remove_in_flight(whole)
    for part in reversed(parts):
        queue.repeat(part, 0.0)
    queue.repeat(after, 0.0)
    assert [queue.take(OLD) for _ in range(3)] == [*parts, after]
    assert whole.part_with(0) == (parts[0], 0)
    assert whole.part_with(4) == (parts[1], 2)


def test_until_the_broker_knows_the_producer_one_batch_is_in_flight() -> None:
    queue, (first, second, third) = queue_of(1, 1, 1)
    assert queue.ready_at(1.0, 5, hurry=False) == 1.0
    queue.take(OLD)
    assert queue.ready_at(1.0, 5, hurry=False) is None, "a broker would take the second as the first"
    queue.repeat(first, not_before=2.0)
    assert queue.ready_at(2.0, 5, hurry=False) == 2.0
    assert queue.take(OLD) is first
    queue.remove(first)
    queue.taken(first)
    for batch in (second, third):
        assert queue.ready_at(3.0, 5, hurry=False) == 3.0
        assert queue.take(OLD) is batch
    assert sequences([first, second, third]) == [(0, 0), (0, 1), (0, 2)]


def test_a_new_identity_is_unknown_again() -> None:
    queue, (first, second, third) = queue_of(1, 1, 1)
    queue.take(OLD)
    queue.remove(first)
    queue.taken(first)
    queue.restarting = True
    queue.take(NEW)
    assert queue.ready_at(1.0, 5, hurry=False) is None
    queue.taken(first)
    assert queue.ready_at(1.0, 5, hurry=False) is None, "the old one's batch says nothing of the new"
    queue.remove(second)
    queue.taken(second)
    assert queue.ready_at(1.0, 5, hurry=False) == 1.0
    assert queue.take(NEW) is third
