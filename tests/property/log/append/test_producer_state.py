"""The guard against a model that keeps every batch ever appended, with restarts in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalog_broker.log.append.producer_states import MAX_SEQUENCE, REMEMBERED_BATCHES, ProducerState
from pyspark_kafkalog.errors import InvalidProducerEpoch, OutOfOrderSequence
from pyspark_kafkalog.formats.batch import BatchHeader
from tests.support.examples import examples

EXPIRATION_MS = 1000
producers = st.integers(0, 3)
# Small counts, so that duplicates and gaps are hit often.
counts = st.integers(1, 4)


def header(producer: int, epoch: int, sequence: int, count: int) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=100,
        partition_leader_epoch=0,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def plus(sequence: int, count: int) -> int:
    return (sequence + count) % (MAX_SEQUENCE + 1)


@dataclass
class Known:
    """What the model has of one producer in its present epoch."""

    epoch: int
    next_sequence: int
    last_ms: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # sequence, count, offset


class ProducerStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerState(EXPIRATION_MS)
        self.model: dict[int, Known] = {}
        self.log: list[tuple[BatchHeader, int, int]] = []
        self.end = 0
        self.now_ms = 10_000

    @initialize(start=st.sampled_from([0, 1, MAX_SEQUENCE - 5, MAX_SEQUENCE]), producer=producers)
    def first_batch(self, start: int, producer: int) -> None:
        self.append(header(producer, 0, start, 2))

    @rule(producer=producers, count=counts)
    def next_batch_is_appended(self, producer: int, count: int) -> None:
        known = self.model.get(producer)
        epoch, sequence = (known.epoch, known.next_sequence) if known else (0, 0)
        assert self.append(header(producer, epoch, sequence, count)) == "appended"

    @rule(producer=producers, back=st.integers(1, 8))
    def retry(self, producer: int, back: int) -> None:
        known = self.model.get(producer)
        if known is None or back > len(known.batches):
            return
        sequence, count, offset = known.batches[-back]
        item = header(producer, known.epoch, sequence, count)
        if back <= REMEMBERED_BATCHES:
            assert self.state.check(item) == (offset, offset + count - 1)
        else:
            assert self.append(item) == "out of order"

    @rule(producer=producers, skip=st.integers(1, 5), count=counts)
    def gap_is_refused(self, producer: int, skip: int, count: int) -> None:
        known = self.model.get(producer)
        if known is not None:
            item = header(producer, known.epoch, plus(known.next_sequence, skip), count)
            assert self.append(item) == "out of order"

    @rule(producer=producers, count=counts, sequence=st.integers(0, 2))
    def new_epoch(self, producer: int, count: int, sequence: int) -> None:
        known = self.model.get(producer)
        if known is not None:
            expected = "appended" if sequence == 0 else "out of order"
            assert self.append(header(producer, known.epoch + 1, sequence, count)) == expected

    @rule(producer=producers)
    def old_epoch_is_refused(self, producer: int) -> None:
        known = self.model.get(producer)
        if known is not None and known.epoch > 0:
            item = header(producer, known.epoch - 1, known.next_sequence, 1)
            assert self.append(item) == "old epoch"

    @rule()
    def restart_after_a_clean_stop(self) -> None:
        state = ProducerState(EXPIRATION_MS)
        state.restore(self.state.dump())
        self.state = state

    @rule()
    def restart_by_replay(self) -> None:
        before = {producer: known.last_ms for producer, known in self.model.items()}
        state = ProducerState(EXPIRATION_MS)
        state.clear()
        for item, base, last in self.log:
            if item.producer_id in before:
                state.record(item, base, last, before[item.producer_id])
        self.state = state

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.state.forget_before(self.now_ms)
        for producer in [
            p for p, known in self.model.items() if known.last_ms + EXPIRATION_MS <= self.now_ms
        ]:
            del self.model[producer]
            self.log = [entry for entry in self.log if entry[0].producer_id != producer]

    @invariant()
    def as_many_producers_are_known(self) -> None:
        assert len(self.state) == len(self.model)

    def append(self, item: BatchHeader) -> str:
        try:
            duplicate = self.state.check(item)
        except OutOfOrderSequence:
            return "out of order"
        except InvalidProducerEpoch:
            return "old epoch"
        if duplicate is not None:
            return "duplicate"
        base, last = self.end, self.end + item.last_offset_delta
        self.state.record(item, base, last, self.now_ms)
        self.log.append((item, base, last))
        self.end = last + 1
        known = self.model.get(item.producer_id)
        if known is None or known.epoch != item.producer_epoch:
            known = self.model[item.producer_id] = Known(item.producer_epoch, 0, self.now_ms)
        known.batches.append((item.base_sequence, item.record_count, base))
        known.next_sequence = plus(item.base_sequence, item.record_count)
        known.last_ms = self.now_ms
        return "appended"


TestProducerState = ProducerStateMachine.TestCase
TestProducerState.settings = examples(60, stateful_step_count=40)
