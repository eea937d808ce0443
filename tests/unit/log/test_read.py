from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.log import walk
from kafkalog_broker.log.file_slice import FileSlice
from kafkalog_broker.log.walk import walk_frames
from pyspark_kafkalog.errors import OffsetOutOfRange
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import batch, contents, open_log, values

SIZE = len(batch(b"value 0", b"value 1", b"value 2"))


def _three_each(log: object, count: int) -> None:
    for number in range(count):
        log.append(batch(*(b"value %d" % (number % 3) for _ in range(3))))  # type: ignore[attr-defined]


def _offsets(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        header = read_header(data, position)
        found.append(header.base_offset)
        position += header.size
    assert position == len(data)
    return found


@pytest.mark.parametrize("interval", [0, 300, 4096])
@pytest.mark.parametrize("max_bytes", [SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 7 * SIZE + 5, 50 * SIZE])
def test_only_whole_batches_within_the_limit_are_given(tmp_path: Path, max_bytes: int, interval: int) -> None:
    _, log = open_log(tmp_path, index_interval_bytes=interval)
    _three_each(log, 30)
    for offset in (0, 1, 30, 45, 86, 89):
        data = contents(log.read(offset, max_bytes, at_least_one=False))
        first = offset - offset % 3
        assert _offsets(data) == list(range(first, min(90, first + 3 * (max_bytes // SIZE)), 3))


def test_a_first_batch_above_the_limit_is_given_only_if_one_must_be(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    _three_each(log, 2)
    assert _offsets(contents(log.read(0, SIZE - 1, at_least_one=True))) == [0]
    assert contents(log.read(0, SIZE - 1, at_least_one=False)) == b""
    assert contents(log.read(0, 0, at_least_one=False)) == b""
    assert _offsets(contents(log.read(4, 0, at_least_one=True))) == [3]


def test_a_large_read_ends_at_a_row_of_the_index_where_the_next_begins_without_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = open_log(tmp_path, index_interval_bytes=500)
    _three_each(log, 1000)
    walked: list[Frame] = []
    monkeypatch.setattr(walk, "walk_frames", lambda *args: map(_noted(walked), walk_frames(*args)))
    offset, found, limit = 0, b"", 300 * SIZE
    while data := contents(log.read(offset, limit, at_least_one=True)):
        assert len(found) + len(data) == log.size_bytes or limit * 63 // 64 <= len(data) <= limit
        found += data
        offset = _offsets(data)[-1] + 3
    assert _offsets(found) == list(range(0, 3000, 3))
    assert len(walked) == 4


def _noted(walked: list[Frame]) -> Callable[[Frame], Frame]:
    return lambda frame: walked.append(frame) or frame  # type: ignore[func-returns-value]


def test_at_the_end_there_is_nothing_and_beyond_it_the_error_has_the_range(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    assert contents(log.read(0, 100, at_least_one=True)) == b""
    _three_each(log, 1)
    assert len(log.read(3, 100, at_least_one=True)) == 0
    for offset in (4, -1):
        with pytest.raises(OffsetOutOfRange) as out:
            log.read(offset, 100, at_least_one=True)
        assert (out.value.offset, out.value.start, out.value.end) == (offset, 0, 3)
        assert str(out.value) == f"my_topic-0: offset {offset} is outside [0, 3]"


def test_a_slice_goes_to_a_socket_in_pieces_and_says_when_it_is_done(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"x" * 700_000))
    piece = log.read(0, 1 << 20, at_least_one=True)
    wanted = piece.read()
    assert len(piece) == len(wanted)
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        received = b""
        rounds = 0
        while not piece.send_to(left):
            rounds += 1
            received += right.recv(65536)
        left.close()
        while data := right.recv(1 << 20):
            received += data
    assert received == wanted
    assert rounds > 1
    assert piece.send_to(left)
    assert len(piece) == len(wanted)
    piece.close()


def test_a_slice_of_a_file_that_became_shorter_ends_with_an_error(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(batch(b"x" * 1000))
    piece = log.read(0, 1 << 20, at_least_one=True)
    with (log.path / "00000000000.kafka").open("r+b") as file:
        file.truncate(100)
    left, right = socket.socketpair()
    with left, right, pytest.raises(EOFError, match="ends before byte"):
        piece.send_to(left)
    with pytest.raises(EOFError):
        piece.read()
    piece.close()


def test_a_slice_gives_its_file_back_when_it_is_closed_or_forgotten(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    _three_each(log, 1)
    pool = manager.open_files

    def leases() -> int:
        return sum(entry.leases for entry in pool._open.values())

    piece = log.read(0, 100, at_least_one=True)
    assert leases() == 1
    piece.close()
    piece.close()
    assert leases() == 0
    piece = log.read(0, 100, at_least_one=True)
    del piece
    gc.collect()
    assert leases() == 0
    with pytest.raises(ValueError, match="closed"):
        _closed(log.read(0, 100, at_least_one=True)).read()


def _closed(piece: FileSlice) -> FileSlice:
    piece.close()
    return piece


def test_a_slice_of_nothing_keeps_no_file_in_use(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    _three_each(log, 1)
    at_end = log.read(3, 1 << 20, at_least_one=True)
    without_room = log.read(0, 1, at_least_one=False)
    assert (len(at_end), len(without_room), manager.open_files.in_use) == (0, 0, 0)
    piece = log.read(0, 1 << 20, at_least_one=True)
    assert manager.open_files.in_use == 1
    piece.close()
    assert manager.open_files.in_use == 0


def test_answers_share_the_files_that_may_be_open_and_each_has_one_at_least(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, max_open_files=8)
    _three_each(log, 1)
    assert manager.open_files.share() == 4
    manager.create_topic("others", uuid4(), 8)
    held = []
    for number in range(8):
        other = manager.log(TopicPartition("others", number))
        other.append(batch(b"x"))
        held.append(other.read(0, 1 << 20, at_least_one=True))
    assert manager.open_files.share() == 1
    held[0].close()
    held[1].close()
    assert manager.open_files.share() == 2


def test_a_deleted_segment_is_served_to_those_who_have_a_slice_of_it(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=SIZE, retention_bytes=0, file_delete_delay_ms=0)
    _three_each(log, 3)
    piece = log.read(0, 1 << 20, at_least_one=True)
    manager.apply_retention()
    assert log.start_offset == 9
    assert not (log.path / "00000000000.kafka").exists()
    assert _offsets(contents(piece)) == [0]
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1 << 20, at_least_one=True)
    assert values(log) == []
