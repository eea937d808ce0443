from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequence,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control, read_header, verify_crc
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import TimestampType
from tests.support.log.logs import START_MS, batch, contents, crash, open_log, read_all, values
from tests.support.manual_clock import ManualClock


def test_only_the_offset_and_the_leader_epoch_of_the_sent_bytes_change(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    sent = batch(b"a", b"b", codec=Codec.ZSTD)
    log.append(bytearray(sent))
    stored = contents(log.read(1, 1 << 20, at_least_one=True))
    assert stored[:8] == (1).to_bytes(8, "big")
    assert stored[12:16] == (0).to_bytes(4, "big")
    assert stored[8:12] + stored[16:] == bytes(sent[8:12] + sent[16:])


def test_read_only_bytes_are_appended_as_well(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    sent = bytes(batch(b"a"))
    log.append(sent)
    log.append(sent)
    assert values(log) == [b"a", b"a"]


def _changed(position: int, value: bytes) -> bytearray:
    data = batch(b"value", b"other")
    data[position : position + len(value)] = value
    return data


def _resealed(position: int, value: bytes) -> bytearray:
    """A change under the checksum, with the checksum it then needs."""
    data = _changed(position, value)
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return data


REFUSED: dict[str, tuple[bytearray, type[KafkaError]]] = {
    "nothing": (bytearray(), InvalidRecord),
    "a header cut short": (batch(b"a")[:60], CorruptMessage),
    "a batch cut short": (batch(b"a")[:-1], CorruptMessage),
    "a byte too many": (batch(b"a") + b"\0", CorruptMessage),
    "a wrong checksum": (_changed(17, b"\1\2\3\4"), CorruptMessage),
    "a changed value": (_changed(70, b"\xff"), CorruptMessage),
    "magic 1": (_changed(16, b"\1"), CorruptMessage),
    "magic 3": (_changed(16, b"\3"), CorruptMessage),
    "a length below the header's": (_changed(8, (48).to_bytes(4, "big")), CorruptMessage),
    "a negative length": (_changed(8, b"\xff\xff\xff\xff"), CorruptMessage),
    "fewer records than offsets": (_resealed(57, (1).to_bytes(4, "big")), InvalidRecord),
    "more records than offsets": (_resealed(57, (3).to_bytes(4, "big")), CorruptMessage),
    "no records": (bytearray(encode_batch([], last_offset_delta=0)), InvalidRecord),
    "a negative record count": (_resealed(57, b"\xff\xff\xff\xff"), CorruptMessage),
    "a negative offset delta": (_resealed(23, b"\xff\xff\xff\xff"), CorruptMessage),
    "an unknown codec": (_resealed(21, (5).to_bytes(2, "big")), UnsupportedCompression),
    "a base offset": (batch(b"a", base_offset=7), InvalidRecord),
    "a control batch": (
        bytearray(encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=START_MS)),
        InvalidRecord,
    ),
    "a transaction without a producer": (batch(b"a", transactional=True), InvalidRecord),
    "a producer without a sequence": (batch(b"a", producer_id=1, producer_epoch=0), InvalidRecord),
    "a producer without an epoch": (batch(b"a", producer_id=1, base_sequence=0), InvalidRecord),
    "a log append time": (batch(b"a", timestamp_type=TimestampType.LOG_APPEND_TIME), InvalidTimestamp),
    "two batches of an idempotent producer": (
        batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0) + batch(b"b"),
        InvalidRecord,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_batch_refuses_the_whole_request(tmp_path: Path, what: str) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"kept"))
    size = log.size_bytes
    bad, error = REFUSED[what]
    for request in (bad, batch(b"good") + bad) if bad else (bad,):
        with pytest.raises(KafkaError) as refused:
            log.append(bytearray(request))
        if request is bad:
            assert type(refused.value) is error
    assert (log.end_offset, log.size_bytes) == (1, size)
    log.append(batch(b"next"))
    assert values(log) == [b"kept", b"next"]


def test_a_record_count_that_cannot_be_in_the_bytes_is_refused(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    data = batch(b"value", b"other")
    data[23:27] = (999).to_bytes(4, "big")
    data[57:61] = (1000).to_bytes(4, "big")
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    with pytest.raises(InvalidRecord, match="1000 records cannot be in"):
        log.append(data)


def test_the_largest_batch_allowed_is_taken_and_one_byte_more_is_not(tmp_path: Path) -> None:
    data = batch(b"x" * 100)
    _, log = open_log(tmp_path, max_message_bytes=len(data))
    log.append(data)
    with pytest.raises(
        MessageTooLarge, match=f"a batch of {len(data) + 1} bytes; max.message.bytes is {len(data)}"
    ):
        log.append(batch(b"x" * 101))
    assert log.end_offset == 1


def test_what_the_broker_appends_itself_may_be_control_records(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, max_message_bytes=10)
    marker = bytearray(encode_control(ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=START_MS))
    assert log.append(marker, internal=True).last_offset == 0
    assert log.append(batch(b"x" * 100), internal=True).last_offset == 1
    # Offsets of a transaction begin at sequence 0 each time.
    for number in range(2, 4):
        offsets = batch(b"o", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
        assert log.append(offsets, internal=True).last_offset == number


def test_the_broker_checks_its_own_bytes_too(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    with pytest.raises(CorruptMessage):
        log.append(_changed(70, b"\xff"), internal=True)


def test_log_append_time_replaces_every_record_s_time(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    _, log = open_log(tmp_path, clock=clock, message_timestamp_type="LogAppendTime")
    clock.advance(5)
    result = log.append(batch(b"a", b"b", timestamps=[1, 2]))
    assert result.log_append_time_ms == START_MS + 5000
    assert [(r.timestamp, r.timestamp_type) for r in read_all(log)] == [
        (START_MS + 5000, TimestampType.LOG_APPEND_TIME)
    ] * 2
    stored = contents(log.read(0, 1 << 20, at_least_one=True))
    verify_crc(stored, 0, read_header(stored))


@pytest.mark.parametrize(("timestamp", "taken"), [(-1000, True), (-1001, False), (2000, True), (2001, False)])
def test_timestamps_are_bounded_on_both_sides(tmp_path: Path, timestamp: int, taken: bool) -> None:
    _, log = open_log(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    for times in ([START_MS, START_MS + timestamp], [START_MS + timestamp, START_MS]):
        if min(times) < times[0]:
            continue  # only the first and the largest time are in the header
        if taken:
            log.append(batch(b"a", b"b", timestamps=times))
        else:
            with pytest.raises(InvalidTimestamp):
                log.append(batch(b"a", b"b", timestamps=times))


def test_records_without_a_timestamp_are_not_bounded(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, message_timestamp_before_max_ms=0, message_timestamp_after_max_ms=0)
    log.append(batch(b"a", timestamps=[-1]))
    assert read_all(log)[0].timestamp == -1


def _numbered(sequence: int, *records: bytes, epoch: int = 0) -> bytearray:
    return batch(*records, producer_id=9, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_sent_twice_is_appended_once_and_answered_with_its_offsets(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"before"))
    log.append(_numbered(0, b"a", b"b"))
    again = log.append(_numbered(0, b"a", b"b"))
    assert (again.base_offset, again.last_offset, again.duplicate) == (1, 2, True)
    assert values(log) == [b"before", b"a", b"b"]


def test_producers_are_known_again_after_a_stop_and_after_a_crash(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=300)
    for number in range(6):
        log.append(_numbered(number, b"%d" % number))
    manager.close()
    manager, log = open_log(tmp_path, segment_bytes=300)
    assert log.append(_numbered(5, b"5")).duplicate
    log.append(_numbered(6, b"6"))
    crash(manager)
    manager, log = open_log(tmp_path, segment_bytes=300)
    assert log.append(_numbered(6, b"6")).duplicate
    assert log.append(_numbered(2, b"2")).duplicate
    with pytest.raises(OutOfOrderSequence):
        log.append(_numbered(8, b"8"))
    (log.path / "producers.snapshot").write_bytes(b"nonsense")
    crash(manager)
    manager, log = open_log(tmp_path, segment_bytes=300)
    assert log.append(_numbered(6, b"6")).duplicate
    assert values(log) == [b"%d" % number for number in range(7)]
