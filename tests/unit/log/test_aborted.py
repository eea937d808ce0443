from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, AbortedTransaction, parse_aborted
from kafkalog_broker.log.cleaning.swap import swap_path
from pyspark_kafkalog.errors import CorruptMessage
from tests.support.log.logs import batch, crash, open_log


def _transactional(producer: int, sequence: int = 0) -> bytearray:
    return batch(b"x", transactional=True, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def test_the_file_has_kafka_s_rows_in_the_segment_of_the_marker(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=2 * len(_transactional(1)) + 78)
    log.append(_transactional(1))  # 0
    log.append(_transactional(2))  # 1
    log.end_transaction(1, 0, commit=False)  # 2
    log.end_transaction(2, 0, commit=False)  # 3, the first of the next segment
    manager.close()
    first, second = sorted(log.path.glob("*.txnindex"))
    assert first.read_bytes() == struct.pack(">hqqqq", 0, 1, 0, 2, 1)
    assert second.read_bytes() == struct.pack(">hqqqq", 0, 2, 1, 3, 4)
    assert [path.stem for path in (first, second)] == ["00000000000", "00000000003"]


def test_no_file_is_written_without_an_aborted_transaction(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(_transactional(1))
    log.end_transaction(1, 0, commit=True)
    log.end_transaction(1, 0, commit=False)
    manager.close()
    assert list(log.path.glob("*.txnindex")) == []


def test_a_damaged_file_is_an_error_for_readers_and_made_again_from_the_log(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(_transactional(1))
    log.end_transaction(1, 0, commit=False)
    manager.close()
    (path,) = log.path.glob("*.txnindex")
    path.write_bytes(path.read_bytes()[:-1])
    manager, log = open_log(tmp_path)
    with pytest.raises(CorruptMessage, match="33 bytes are not whole rows of 34"):
        log.read(0, 1000, at_least_one=True, committed_only=True)
    crash(manager)
    (log.path / "producers.snapshot").unlink()
    _, log = open_log(tmp_path)
    piece = log.read(0, 1000, at_least_one=True, committed_only=True)
    assert list(piece.aborted) == [AbortedTransaction(1, 0, 1, 2)]
    piece.close()


def test_the_rows_of_a_cleaning_that_a_crash_interrupted_are_found(tmp_path: Path) -> None:
    """The cleaned file has them from its second segment, and gets the name of its first, which had none."""
    manager, log = open_log(tmp_path, segment_bytes=len(_transactional(1)) + 78)
    for data in (batch(b"x"), batch(b"x"), _transactional(1)):
        log.append(data)
    log.end_transaction(1, 0, commit=False)  # 3
    log.append(batch(b"x"))  # 4, the first of the third segment
    manager.close()
    first, second, _ = sorted(log.path.glob("*.kafka"))
    assert second.stem == "00000000002"
    swap_path(log.path, 0, 4).write_bytes(first.read_bytes() + second.read_bytes())
    index = swap_path(log.path, 0, 4, ABORTED_SUFFIX)
    index.write_bytes(second.with_suffix(ABORTED_SUFFIX).read_bytes())
    manager, log = open_log(tmp_path)
    assert [path.stem for path in sorted(log.path.glob("*.kafka"))] == ["00000000000", "00000000004"]
    piece = log.read(0, 1000, at_least_one=True, committed_only=True)
    assert list(piece.aborted) == [AbortedTransaction(1, 2, 3, 4)]
    piece.close()
    manager.close()


@pytest.mark.parametrize("row", [(1, 1, 0, 2, 3), (0, 1, 2, 2, 3), (0, 1, -1, 2, 3)])
def test_a_row_that_cannot_be_is_refused(row: tuple[int, ...]) -> None:
    with pytest.raises(CorruptMessage):
        parse_aborted(struct.pack(">hqqqq", *row), Path("x"))
