from __future__ import annotations

import pytest
from msgspec.structs import replace

from kafkalog_broker.log.append.producer_states import MAX_SEQUENCE, ProducerState
from kafkalog_broker.log.family import KnownProducer
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
)
from pyspark_kafkalog.formats.batch import TRANSACTIONAL_BIT, BatchHeader, ControlType, read_header
from tests.support.protocol.raw_client import batch

DAY_MS = 86_400_000


def header(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return read_header(
        memoryview(batch(*[b"v"] * count, producer_id=producer, epoch=epoch, sequence=sequence))
    )


class Log:
    """Appends through a guard as a log does."""

    def __init__(self, state: ProducerState | None = None, now_ms: int = 1000) -> None:
        self.state = state if state is not None else ProducerState(DAY_MS)
        self.end = 0
        self.now_ms = now_ms

    def append(self, item: BatchHeader) -> tuple[int, int]:
        duplicate = self.state.check(item)
        if duplicate is not None:
            return duplicate
        base, last = self.end, self.end + item.last_offset_delta
        self.state.record(item, base, last, self.now_ms)
        self.end = last + 1
        return base, last


def test_each_of_the_last_five_batches_is_answered_with_its_old_offsets() -> None:
    log = Log()
    for i in range(6):
        log.append(header(2 * i, 2))
    for i in range(1, 6):
        assert log.state.check(header(2 * i, 2)) == (2 * i, 2 * i + 1)


def test_a_duplicate_older_than_five_batches_is_out_of_order() -> None:
    log = Log()
    for i in range(6):
        log.append(header(i))
    with pytest.raises(OutOfOrderSequence, match="expected sequence 6, got 0"):
        log.state.check(header(0))


def test_a_batch_with_the_same_first_sequence_but_another_count_is_not_a_duplicate() -> None:
    log = Log()
    log.append(header(0, 2))
    with pytest.raises(OutOfOrderSequence):
        log.state.check(header(0, 3))


def test_a_gap_is_refused_and_changes_nothing() -> None:
    log = Log()
    log.append(header(0))
    with pytest.raises(OutOfOrderSequence, match="expected sequence 1, got 2"):
        log.state.check(header(2))
    assert log.append(header(1)) == (1, 1)


def test_an_older_epoch_is_refused() -> None:
    log = Log()
    log.append(header(0, epoch=3))
    with pytest.raises(InvalidProducerEpoch, match="epoch 3; the batch has 2"):
        log.state.check(header(1, epoch=2))


def test_a_newer_epoch_begins_at_sequence_0_only() -> None:
    log = Log()
    log.append(header(0, epoch=0))
    with pytest.raises(OutOfOrderSequence, match="begins epoch 1 with sequence 1"):
        log.state.check(header(1, epoch=1))
    assert log.append(header(0, epoch=1)) == (1, 1)
    with pytest.raises(InvalidProducerEpoch):
        log.state.check(header(0, epoch=0))


def test_a_batch_without_a_producer_id_is_neither_checked_nor_remembered() -> None:
    log = Log()
    item = read_header(memoryview(batch(b"v")))
    assert log.append(item) == (0, 0)
    assert log.append(item) == (1, 1)
    assert len(log.state) == 0


def test_the_sequence_wraps_to_0_after_its_maximum() -> None:
    log = Log()
    assert log.append(header(MAX_SEQUENCE - 1, 2)) == (0, 1)
    assert log.append(header(0, 2)) == (2, 3)
    assert log.state.check(header(0, 2)) == (2, 3)


def test_a_batch_across_the_wrap_is_followed_and_found_as_a_duplicate() -> None:
    log = Log()
    assert log.append(header(MAX_SEQUENCE, 3)) == (0, 2)
    assert log.state.check(header(MAX_SEQUENCE, 3)) == (0, 2)
    assert log.append(header(2)) == (3, 3)


def test_a_silent_producer_is_forgotten_and_may_then_begin_anywhere() -> None:
    log = Log(ProducerState(expiration_ms=100), now_ms=1000)
    log.append(header(0))
    log.state.forget_before(1099)
    assert len(log.state) == 1
    log.state.forget_before(1100)
    assert len(log.state) == 0
    assert log.append(header(9)) == (1, 1)


def test_an_append_keeps_a_producer_from_being_forgotten() -> None:
    log = Log(ProducerState(expiration_ms=100), now_ms=1000)
    log.append(header(0))
    log.now_ms = 1090
    log.append(header(1))
    log.state.forget_before(1150)
    assert len(log.state) == 1


def test_what_is_dumped_is_restored() -> None:
    log = Log()
    for i in range(7):
        log.append(header(i, producer=1, epoch=2))
    log.append(header(5, producer=2))
    restored = ProducerState(DAY_MS)
    restored.restore(log.state.dump())
    assert restored.dump() == log.state.dump()
    assert restored.check(header(4, producer=1, epoch=2)) == (4, 4)
    assert restored.check(header(6, producer=2)) is None


def test_a_cut_dump_is_refused_at_every_byte_and_leaves_nothing() -> None:
    log = Log()
    log.append(header(0))
    log.append(header(0, producer=8))
    data = log.state.dump()
    for size in range(1, len(data)):
        state = ProducerState(DAY_MS)
        with pytest.raises(CorruptMessage, match="snapshot"):
            state.restore(data[:size])
        assert len(state) == 0


def test_a_dump_of_another_version_or_with_trailing_bytes_is_refused() -> None:
    log = Log()
    log.append(header(0))
    data = log.state.dump()
    for bad in (b"\x01" + data[1:], b"\x03" + data[1:], data + b"\x00"):
        with pytest.raises(CorruptMessage, match="snapshot"):
            ProducerState(DAY_MS).restore(bad)


def in_transaction(sequence: int, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    return replace(header(sequence, epoch=epoch, producer=producer), attributes=TRANSACTIONAL_BIT)


def marker(*, epoch: int = 0) -> BatchHeader:
    return replace(in_transaction(0, epoch=epoch), base_sequence=-1)


def test_a_producer_sends_nothing_plain_while_its_transaction_is_open() -> None:
    log = Log()
    log.append(in_transaction(0))
    with pytest.raises(InvalidTxnState):
        log.append(header(1))
    log.state.end(marker(), ControlType.COMMIT, 1, 1000)
    log.append(header(1))


def test_a_marker_of_the_same_epoch_keeps_the_sequences_and_a_later_one_begins_them_at_0() -> None:
    log = Log()
    log.append(in_transaction(0))
    log.state.end(marker(), ControlType.ABORT, 1, 1000)
    log.append(in_transaction(1))
    log.state.end(marker(epoch=1), ControlType.ABORT, 3, 1000)
    with pytest.raises(InvalidProducerEpoch):
        log.append(in_transaction(2))
    with pytest.raises(OutOfOrderSequence, match="expected sequence 0, got 2"):
        log.append(in_transaction(2, epoch=1))
    log.append(in_transaction(0, epoch=1))


def test_a_second_marker_ends_nothing() -> None:
    log = Log()
    log.append(in_transaction(0))
    assert log.state.end(marker(), ControlType.ABORT, 1, 1000) == (7, 0, 1, 2)
    assert log.state.end(marker(), ControlType.ABORT, 2, 1000) is None
    assert log.state.first_open is None


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    log = Log()
    log.append(in_transaction(0))
    log.append(header(0, producer=8))
    log.state.forget_before(1000 + 10 * DAY_MS)
    assert log.state.known() == [KnownProducer(7, 0, 0, 1000, 0)]


def test_open_transactions_are_dumped_and_restored_in_their_order() -> None:
    log = Log()
    log.append(in_transaction(0, producer=9))
    log.append(in_transaction(0, producer=8))
    log.append(in_transaction(1, producer=9))
    restored = ProducerState(DAY_MS)
    restored.restore(log.state.dump())
    assert restored.known() == log.state.known()
    assert restored.first_open == 0
    assert restored.end(replace(marker(), producer_id=9), ControlType.ABORT, 3, 1000) == (9, 0, 3, 1)
