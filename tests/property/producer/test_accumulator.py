"""The accumulator against a model: whatever fails, each partition's records settle once and in order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_kafkalog.client.transactions import ProducerEpoch
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.producer.accumulator import Accumulator
from pyspark_kafkalog.producer.encoder import record_size_bound
from pyspark_kafkalog.producer.producer_batch import Delivery, ProducerBatch
from pyspark_kafkalog.types import TopicPartition
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

BATCH_SIZE = 400
PARTITIONS = 2


class Model(RuleBasedStateMachine):
    """``stored`` is what an idempotent broker would hold: it takes a batch only if its number is the next."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(monotonic=0)
        config = ProducerConfig(
            bootstrap_servers="localhost:1", batch_size=BATCH_SIZE, linger_ms=10, buffer_memory=1 << 20
        )
        self.woken = 0
        self.settled: list[ProducerBatch] = []
        self.accumulator = Accumulator(
            config, wake=self.wake, on_settled=self.settled.append, clock=self.clock
        )
        self.queues = [self.accumulator.queue(TopicPartition("t", p)) for p in range(PARTITIONS)]
        self.sent: list[list[tuple[bytes, Delivery]]] = [[] for _ in range(PARTITIONS)]
        self.stored: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.expected_sequence: list[dict[tuple[int, int], int]] = [{} for _ in range(PARTITIONS)]
        self.failed: set[bytes] = set()
        self.flying: list[ProducerBatch] = []
        self.count = 0

    def wake(self) -> None:
        self.woken += 1

    @initialize()
    def identify(self) -> None:
        self.accumulator.identity = ProducerEpoch(1, 0)

    @rule(partition=st.integers(0, PARTITIONS - 1), size=st.integers(0, 500), many=st.integers(1, 5))
    def append(self, partition: int, size: int, many: int) -> None:
        for _ in range(many):
            self.count += 1
            value = b"%d " % self.count + bytes(size)
            bound = record_size_bound(len(value), (), own_time=False)
            delivery = self.accumulator.append(
                self.queues[partition], value, None, 1000, (), bound, lambda *_: None
            )
            self.sent[partition].append((value, delivery))

    @rule(seconds=st.floats(0, 0.02))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def take(self) -> None:
        now = self.clock.monotonic()
        ready, _ = self.accumulator.ready(now)
        for queue in ready:
            batch = self.accumulator.take(queue, now)
            if batch is not None:
                assert batch.size <= BATCH_SIZE or batch.count == 1
                batch.attempts += 1
                batch.sent = True
                self.flying.append(batch)

    @precondition(lambda self: self.flying)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["store", "store", "store", "lose", "answer lost", "too large", "fail"]),
    )
    def land(self, data: st.DataObject, fate: str) -> None:
        # One partition's requests are answered in order, as on one connection.
        heads = {batch.tp: batch for batch in reversed(self.flying)}
        batch = data.draw(st.sampled_from(list(heads.values())))
        self.flying.remove(batch)
        now = self.clock.monotonic()
        if fate == "lose":
            self.accumulator.repeat(batch, now)
        elif fate == "fail":
            self.failed.update(value for value in batch.values if value is not None)
            self.accumulator.settle(batch, error=KafkaError("for good"))
        elif fate == "too large" and batch.count > 1:
            self.accumulator.split(batch, now)
        else:
            self.store(batch, now, answered=fate != "answer lost")

    def store(self, batch: ProducerBatch, now: float, *, answered: bool) -> None:
        partition = batch.tp.partition
        identity = (batch.producer_id, batch.epoch)
        expected = self.expected_sequence[partition].get(identity, 0)
        log = self.stored[partition]
        if batch.base_sequence == expected:
            log += [value for value in batch.values if value is not None]
            self.expected_sequence[partition][identity] = expected + batch.count
        elif batch.base_sequence > expected:
            self.accumulator.repeat_refused(batch, now, new_id=False)
            return
        if answered:
            self.accumulator.settle(batch, 0, -1)
        else:
            self.accumulator.repeat(batch, now)

    @invariant()
    def the_log_holds_each_record_once_and_in_order(self) -> None:
        for partition in range(PARTITIONS):
            order = {value: place for place, (value, _) in enumerate(self.sent[partition])}
            places = [order[value] for value in self.stored[partition]]
            assert places == sorted(set(places))

    @invariant()
    def no_more_than_five_batches_of_a_partition_are_in_flight(self) -> None:
        for queue in self.queues:
            assert len(queue.in_flight) <= 5

    def teardown(self) -> None:
        """Let everything land: then each record is stored or failed, and the buffer is empty."""
        self.accumulator.close()
        for _ in range(10_000):
            self.take()
            while self.flying:
                self.store(self.flying.pop(0), self.clock.monotonic(), answered=True)
            if self.accumulator.drained:
                break
        assert self.accumulator.drained
        assert self.accumulator._used == 0
        for partition in range(PARTITIONS):
            values = [value for value, _ in self.sent[partition]]
            stored = set(self.stored[partition])
            # What failed for good may have been stored by an attempt whose answer was lost.
            assert [v for v in values if v in stored] == self.stored[partition]
            assert all(value in stored or value in self.failed for value in values)
            for value, delivery in self.sent[partition]:
                assert delivery.done
                if value not in self.failed:
                    assert delivery.result(0).partition == partition
        told = sum(len(batch.callbacks) for batch in self.settled)
        assert told == self.count


Model.TestCase.settings = examples(150, stateful_step_count=40)
TestAccumulator = Model.TestCase
