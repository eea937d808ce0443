"""Transactional ids whose partition another broker keeps from now on, as after `forget`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.transactions.markers import Markers
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.transaction_coordinator import TransactionCoordinator, transaction_topic
from pyspark_kafkalog.errors import ErrorCode, InvalidTxnState, KafkaError, ServerError
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.manual_clock import ManualClock
from tests.support.placement import ShiftingPlacement

T = TopicPartition("t", 0)
TIMEOUT_MS = 1000


class RemoteCoordinators:
    """Nobody else coordinates anything; ``asked`` are the questions that wait for an answer."""

    def __init__(self) -> None:
        self.asked: list[Callable[[frozenset[int] | None], None]] = []
        self.verified = self

    def elsewhere(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset()

    def holders(self, producers: Iterable[int], on_answer: Callable[[frozenset[int] | None], None]) -> None:
        self.asked.append(on_answer)

    def ending(self, *_: Any) -> Any:
        return nullcontext()

    writing = ending


class Bench:
    """A coordinator of one partition that a cluster may give to others."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.placement = ShiftingPlacement()
        self.others: Any = RemoteCoordinators()
        self.logs = LogManager(
            [directory], defaults=LogConfig(), clock=self.clock, producer_expiration_ms=1 << 40
        )
        self.logs.start()
        for name in ("t", TRANSACTIONS_TOPIC):
            self.logs.create_topic(name, uuid4(), 1, {})
        ids = ProducerIds([directory], FileSystem(), run=lambda work: work())
        ids.reserve()
        self.coordinator = TransactionCoordinator(
            self.logs,
            self.clock,
            ids,
            transaction_topic(
                self.logs, create=lambda: None, appended=lambda *_: None, placement=self.placement
            ),
            Markers(
                self.logs,
                lambda _, task: task(),
                flush=False,
                end_offsets=lambda *_: 0,
                ended=lambda *_: None,
                others=self.others,
            ),
            max_timeout_ms=TIMEOUT_MS,
            expiration_ms=1 << 40,
        )
        self.coordinator.start()
        self.see(None)

    def see(self, code: ErrorCode | None) -> None:
        """The partition is ours, or refused with ``code``, from now on."""
        self.placement.code = code
        self.coordinator.look()
        self.coordinator.load()

    def open(self) -> tuple[int, int]:
        """A transaction of the id "id" with a record in T."""
        producer = self.coordinator.initialize("id", TIMEOUT_MS, None)
        self.coordinator.add("id", *producer, [T])
        with self.coordinator.writing("id", *producer, T):
            batch = encode_batch(
                [NewRecord(b"v", None, self.clock.time_ms())],
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=0,
                transactional=True,
            )
            self.logs.log(T).append(bytearray(batch))
        return producer

    def log_end(self, partition: TopicPartition = T) -> int:
        return self.logs.log(partition).end_offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.logs.close()


def test_an_id_is_refused_at_once_and_its_transaction_is_not_listed(bench: Bench) -> None:
    producer = bench.open()
    assert [each.transactional_id for each in bench.coordinator.all()] == ["id"]
    bench.placement.code = ErrorCode.NOT_COORDINATOR
    for looked in (False, True):
        if looked:
            bench.see(ErrorCode.NOT_COORDINATOR)
        for asked in (
            lambda: bench.coordinator.initialize("id", TIMEOUT_MS, None),
            lambda: bench.coordinator.add("id", *producer, [T]),
            lambda: bench.coordinator.end("id", *producer, commit=True),
            lambda: bench.coordinator.find("id"),
            lambda: bench.coordinator.check("id", *producer, [T]),
        ):
            with pytest.raises(ServerError) as refused:
                asked()
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert bench.coordinator.is_elsewhere("id")
    assert bench.coordinator.all() == []


def test_time_ends_nothing_that_another_broker_coordinates(bench: Bench) -> None:
    bench.open()
    end, keeper = bench.log_end(), TopicPartition(TRANSACTIONS_TOPIC, 0)
    end_of_ids = bench.log_end(keeper)
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.clock.advance(100)
    bench.coordinator.end_overdue()
    bench.coordinator.forget_idle()
    assert (bench.log_end(), bench.log_end(keeper)) == (end, end_of_ids)


def test_an_id_continues_where_it_was_when_its_partition_comes_back(bench: Bench) -> None:
    producer = bench.open()
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.see(None)
    bench.coordinator.end("id", *producer, commit=True).run()
    assert bench.log_end() == 2
    assert bench.coordinator.initialize("id", TIMEOUT_MS, None) == (producer[0], producer[1] + 1)


def test_what_no_coordinator_has_any_more_is_aborted_in_spite_of_what_this_one_once_had(bench: Bench) -> None:
    bench.open()
    bench.clock.advance(3)
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.coordinator.abort_unclaimed()
    (on_answer,) = bench.others.asked
    assert bench.log_end() == 1
    on_answer(None)
    assert bench.log_end() == 1, "one of the coordinators did not say"
    on_answer(frozenset())
    assert bench.log_end() == 2
    assert list(bench.logs.open_transactions()) == []


def test_nothing_is_aborted_where_an_id_left_this_broker_while_the_others_were_asked(bench: Bench) -> None:
    bench.open()
    bench.clock.advance(3)
    bench.coordinator.abort_unclaimed()
    (on_answer,) = bench.others.asked
    bench.see(ErrorCode.NOT_COORDINATOR)
    on_answer(frozenset())
    assert bench.log_end() == 1


def test_nothing_is_aborted_by_a_coordinator_that_has_lost_its_data(bench: Bench) -> None:
    bench.open()
    bench.clock.advance(3)
    bench.see(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(KafkaError):
        bench.coordinator.all()
    bench.coordinator.abort_unclaimed()
    (on_answer,) = bench.others.asked
    on_answer(frozenset())
    assert bench.log_end() == 1


def test_data_of_a_transaction_that_another_broker_coordinates_is_asked_about_there(bench: Bench) -> None:
    producer = bench.open()
    bench.see(ErrorCode.NOT_COORDINATOR)
    asked = []

    def writing(*given: Any) -> Any:
        asked.append(given)
        raise InvalidTxnState("not verified")

    bench.others.writing = writing
    with pytest.raises(InvalidTxnState), bench.coordinator.writing("id", *producer, T):
        raise AssertionError
    assert asked == [(T, *producer)]
