from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES
from pyspark_kafkalog.errors import MessageTooLarge, StorageError
from pyspark_kafkalog.formats.batch import ControlType, encode_control
from pyspark_kafkalog.formats.compression import Codec
from tests.support.log.logs import batch, open_log


def test_control_records_are_not_an_answer(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    marker = bytearray(encode_control(ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=50))
    log.append(batch(b"0", timestamps=[10]))
    log.append(marker, internal=True)
    log.append(batch(b"2", timestamps=[40]))
    log.append(batch(b"3", timestamps=[60]))
    assert log.offset_for_timestamp(30) == (40, 2)


def test_the_first_record_with_the_time_or_a_later_one_is_found(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"0", b"1", b"2", timestamps=[100, 200, 300]))
    log.append(batch(b"3", b"4", timestamps=[250, 400], codec=Codec.LZ4))
    found = [log.offset_for_timestamp(ms) for ms in (0, 100, 101, 200, 201, 300, 301, 400, 401)]
    assert found == [
        (100, 0), (100, 0), (200, 1), (200, 1), (300, 2), (300, 2), (400, 4), (400, 4), None,
    ]  # fmt: skip


def test_the_largest_time_is_reported_with_the_first_record_that_has_it(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, segment_bytes=200)
    assert log.max_timestamp() is None
    log.append(batch(b"0", b"1", timestamps=[5, 9]))
    assert log.max_timestamp() == (9, 1)
    log.append(batch(b"2", b"3", timestamps=[9, 3]))
    log.append(batch(b"4", timestamps=[4]))
    assert log.segment_count > 1
    assert log.max_timestamp() == (9, 1)
    log.append(batch(b"5", timestamps=[10]))
    assert log.max_timestamp() == (10, 5)


def test_records_without_times_are_never_found(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"0", timestamps=[-1]))
    assert log.max_timestamp() is None
    assert log.offset_for_timestamp(0) is None
    log.append(batch(b"1", b"2", timestamps=[-1, 7]))
    assert log.offset_for_timestamp(0) == (7, 2)


@pytest.mark.long("many megabytes")
def test_a_look_up_takes_no_memory_for_what_records_hold(tmp_path: Path) -> None:
    # Half a megabyte when opened; as objects, 10 MB.
    _, log = open_log(tmp_path)
    count = 50_000
    log.append(batch(*[b""] * count, timestamps=[10] * (count - 1) + [20], codec=Codec.ZSTD))
    tracemalloc.start()
    try:
        assert log.offset_for_timestamp(15) == (20, count - 1)
        assert log.max_timestamp() == (20, count - 1)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_batch_that_unfolds_without_end_is_refused_and_the_others_are_found(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"0", timestamps=[10]))
    # Clients cannot append such a batch; a log that was copied here may hold one.
    log.append(batch(bytes(MAX_DECOMPRESSED_BYTES), timestamps=[20], codec=Codec.ZSTD), internal=True)
    log.append(batch(b"2", timestamps=[30]))
    assert log.offset_for_timestamp(5) == (10, 0)
    with pytest.raises(MessageTooLarge, match=f"limit is {MAX_DECOMPRESSED_BYTES}"):
        log.offset_for_timestamp(15)
    assert log.offset_for_timestamp(25) == (30, 2)
    assert log.max_timestamp() == (30, 2)


def test_a_closed_log_answers_no_question(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    manager.close()
    for look_up in (partial(log.offset_for_timestamp, 0), log.max_timestamp):
        with pytest.raises(StorageError, match="closed"):
            look_up()
    with pytest.raises(StorageError, match="closed"):
        log.append(batch(b"x"))
