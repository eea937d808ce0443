"""How many small transactions a second do our broker and Apache Kafka 4.1 take from 20 producers?

Each producer has a connection of its own, and a partition: AddPartitionsToTxn, Produce of one record of 100
bytes, EndTxn, one after the other, by raw requests in versions that both serve (transactions of version 1).
Kafka answers EndTxn before the markers are written, so the next AddPartitionsToTxn is refused until they are:
it is then asked again after 1 ms. Nothing is forced to disk. The brokers are processes of their own and are
served in turn; the median of the rounds counts.
"""

from __future__ import annotations

import threading
import time

from benchmarks.broker_and_kafka import KAFKA, OURS, PEER, both
from benchmarks.harness import Row, compare, interleave
from benchmarks.raw_client import RawClient
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType, FindCoordinatorRequest
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from pyspark_kafkalog.types import NewRecord
from tests.support.foreign.apache_kafka import fetch

PRODUCERS = 20
TRANSACTIONS = 100  # of each producer in a round
WANTED_PER_SECOND = 1000
TOPIC = "transactions"
_VERSIONS = {"FindCoordinator": 3, "Init": 4, "Add": 3, "Produce": 9, "End": 3}
_RETRY_SECONDS = 0.001
_START_SECONDS = 60.0


def run(rounds: int = 5) -> list[Row]:
    """Both rows; about a minute."""
    with both(fetch(KAFKA)) as brokers:
        teams = {name: Team(served.port) for name, served in brokers.items()}
        work = {name: team.work for name, team in teams.items()}
        measured = interleave(work, rounds, PRODUCERS * TRANSACTIONS)
        for team in teams.values():
            team.close()
    ours, peer = measured[OURS], measured[PEER]
    question = f"transactions of one record, {PRODUCERS} producers"
    limit = Row(
        f"{question}: wanted", ours.rate, WANTED_PER_SECOND, ours.rate / WANTED_PER_SECOND, 1.0,
        "transactions/s", "peer: the rate that is wanted",
    )  # fmt: skip
    return [limit, compare(question, ours, peer, "transactions/s")]


class Team:
    """*Not thread-safe.* All producers at one broker."""

    def __init__(self, port: int) -> None:
        with RawClient(port) as client:
            client.create_topic(TOPIC, PRODUCERS)
        self._members = [Member(port, number) for number in range(PRODUCERS)]

    def work(self) -> None:
        threads = [threading.Thread(target=member.work) for member in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for member in self._members:
            if member.failure is not None:
                raise member.failure

    def close(self) -> None:
        for member in self._members:
            member.client.close()


class Member:
    """*Not thread-safe: one thread at a time.* One transactional producer, with a partition of its own."""

    def __init__(self, port: int, number: int) -> None:
        self.client = RawClient(port)
        self.failure: BaseException | None = None
        self._number = number
        self._id = f"producer-{number}"
        self._sequence = 0
        coordinator = FindCoordinatorRequest(key=self._id, key_type=CoordinatorType.TRANSACTION)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            found = self.client.call(coordinator, _VERSIONS["FindCoordinator"])
            answer = self.client.call(InitProducerIdRequest(self._id, 60_000), _VERSIONS["Init"])
            if found.error_code == answer.error_code == ErrorCode.NONE:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._id}: {found.error_code!r}, {answer.error_code!r}")
            time.sleep(0.1)
        self._producer = (answer.producer_id, answer.producer_epoch)
        topics = (AddPartitionsToTxnTopic(TOPIC, (number,)),)
        self._add = AddPartitionsToTxnRequest((), self._id, *self._producer, topics)
        self._end = EndTxnRequest(self._id, *self._producer, True)

    def work(self) -> None:
        try:
            for _ in range(TRANSACTIONS):
                self._transaction()
        except BaseException as e:
            self.failure = e

    def _transaction(self) -> None:
        while (code := self._added()) == ErrorCode.CONCURRENT_TRANSACTIONS:
            time.sleep(_RETRY_SECONDS)
        _check(code)
        data = encode_batch(
            [NewRecord(bytes(100), timestamp=time.time_ns() // 1_000_000)],
            producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=self._sequence,
            transactional=True,
        )  # fmt: skip
        rows = (TopicProduceData(TOPIC, (PartitionProduceData(self._number, memoryview(data)),)),)
        sent = self.client.call(ProduceRequest(self._id, -1, 30_000, rows), _VERSIONS["Produce"])
        _check(sent.responses[0].partition_responses[0].error_code)
        self._sequence += 1
        _check(self.client.call(self._end, _VERSIONS["End"]).error_code)

    def _added(self) -> ErrorCode:
        answer = self.client.call(self._add, _VERSIONS["Add"])
        code: ErrorCode = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code


def _check(code: ErrorCode) -> None:
    if code != ErrorCode.NONE:
        raise RuntimeError(f"refused: {code!r}")
