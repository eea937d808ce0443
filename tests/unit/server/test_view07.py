"""A log of 0.7 as batches: limits, what cannot be told, and what one request may cost."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.file_slice import FileSlice, MemorySlice
from kafkalog_broker.log.log import Log
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.log_access import Allowance
from kafkalog_broker.server.view07 import View07
from pyspark_kafkalog.errors import ErrorCode, OffsetOutOfRange, ServerError, StorageError
from pyspark_kafkalog.formats.message_set import frames, records
from tests.support.log.logs import START_MS, crash_all, open_log
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import entry, zipped

REFUSED = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
ONE = entry(b"one")


@pytest.fixture(autouse=True)
def _no_manager_outlives_its_test() -> Iterator[None]:
    yield
    crash_all()


def open_first(path: Path, *sets: bytes, **options: Any) -> Log:
    log = open_log(path, generation="0.7", **options)[1]
    for each in sets:
        log.append(each)
    log.flush()
    return log


def read(
    log: Log,
    offset: int,
    max_bytes: int = 1 << 20,
    *,
    view: View07 | None = None,
    at_least_one: bool = True,
    allowance: Allowance | None = None,
) -> bytes:
    view = view or View07(Metrics())
    batches = view(log, allowance or Allowance()).read(offset, max_bytes, at_least_one=at_least_one)
    return batches.read()


def values(data: bytes) -> list[tuple[int, bytes | None]]:
    found = records(memoryview(data), start_offset=0, max_bytes=1 << 26)
    return [(record.offset, record.value) for record in found]


def bases(data: bytes) -> list[int]:
    return [frame.first_offset for frame in frames(memoryview(data))]


def test_an_answer_goes_over_the_ends_of_segments(tmp_path: Path) -> None:
    log = open_first(tmp_path, *[ONE] * 6, segment_bytes=20)
    assert log.segment_count == 3
    assert bases(read(log, 14)) == [13, 26, 39, 52, 65]


def test_the_limit_holds_but_for_the_first_batch(tmp_path: Path) -> None:
    log = open_first(tmp_path, *[ONE] * 6)
    size = len(read(log, 0)) // 6
    assert [len(read(log, 0, limit)) for limit in (0, 1, size, size + 1, 2 * size, 3 * size - 1)] == [
        size, size, size, size, 2 * size, 2 * size,
    ]  # fmt: skip
    assert [len(read(log, 0, n, at_least_one=False)) for n in (0, 1, size - 1, size)] == [0, 0, 0, size]


def test_a_message_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    long = bytes(900_000)
    log = open_first(tmp_path, ONE, entry(long), ONE)
    assert [len(value or b"") for _, value in values(read(log, 0, 1 << 21))] == [3, 900_000, 3]
    assert len(read(log, 500_000, 10)) > 900_000


def test_one_request_makes_no_more_than_its_allowance(tmp_path: Path) -> None:
    log = open_first(tmp_path, entry(bytes(50_000)) * 30)
    allowance = Allowance(1 << 20)
    assert 1 << 20 <= len(read(log, 0, 1 << 26, allowance=allowance)) < (1 << 20) + 51_000
    assert allowance.spent
    assert read(log, 0, allowance=allowance) == b""
    bomb = zipped(entry(bytes(800_000)), entry(b"x"))
    log = open_first(tmp_path / "2", bomb, bomb, bomb)
    assert bases(read(log, 0, allowance=Allowance(1 << 20))) == [0, len(bomb)]


def test_a_partition_gets_half_of_what_is_left(tmp_path: Path) -> None:
    log = open_first(tmp_path, entry(bytes(10_000)) * 100)
    whole = Allowance(400_000)
    sizes = [len(read(log, 0, 1 << 26, allowance=whole.part())) // 10_000 for _ in range(8)]
    assert sizes == [20, 10, 5, 3, 1, 1, 0, 0]
    assert (whole.short, whole.spent) == (True, True)
    idle = Allowance()
    assert read(log, log.readable_end, allowance=idle.part()) == b""
    assert not idle.short


def test_a_view_ends_where_the_disk_does(tmp_path: Path) -> None:
    log = open_first(tmp_path, ONE)
    log.append(ONE)
    seen = View07(Metrics())(log, Allowance())
    assert (seen.start_offset, seen.readable_end, seen.last_stable_offset) == (0, 13, 13)
    assert values(read(log, 0)) == [(0, b"one")]
    assert read(log, 13) == b""
    for offset in (14, -1):
        with pytest.raises(OffsetOutOfRange, match=r"outside \[0, 13\]"):
            read(log, offset)
    log.flush()
    assert (seen.readable_end, values(read(log, 13))) == (26, [(13, b"one")])


def test_what_cannot_be_converted_is_refused_after_what_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = zipped(*[entry(b"")] * 3000)
    log = open_first(tmp_path, ONE + crowd + ONE)
    view = View07(Metrics())
    assert values(read(log, 0, view=view)) == [(0, b"one")]
    with caplog.at_level(logging.WARNING, "kafkalog_broker.server.view07"):
        for offset in (13, 14, 13):
            with pytest.raises(ServerError, match=rf"entry at offset 13 .* has {len(crowd)} bytes") as caught:
                read(log, offset, view=view)
            assert caught.value.code == REFUSED
    assert [record.getMessage() for record in caplog.records] == [
        f"{caught.value.args[0].removeprefix('UNSUPPORTED_FOR_MESSAGE_FORMAT: ')}."
        " Today's clients stop here; to go on they must seek past it"
    ]
    behind = 13 + len(crowd)
    assert values(read(log, behind, view=view)) == [(behind, b"one")]


def test_a_damaged_message_is_refused_and_what_is_after_it_is_not(tmp_path: Path) -> None:
    log = open_first(tmp_path, ONE * 3)
    path = log.path / "00000000000.kafka"
    data = bytearray(path.read_bytes())
    data[13 + 12] ^= 1
    path.write_bytes(data)
    assert values(read(log, 0)) == [(0, b"one")]
    with pytest.raises(ServerError, match=r"offset 13 .* bad checksum") as caught:
        read(log, 13)
    assert caught.value.code == REFUSED
    assert values(read(log, 26)) == [(26, b"one")]
    data[13:17] = b"\0\0\1\0"
    path.write_bytes(data)
    with pytest.raises(ServerError, match=r"offset 13 .* the data is cut short"):
        read(log, 13)
    data[13:17] = b"\0\0\0\1"
    path.write_bytes(data)
    with pytest.raises(ServerError, match="length 1"):
        read(log, 26)
    path.write_bytes(data[:15])
    with pytest.raises(ServerError, match="ends before byte"):
        read(log, 0)


def test_an_entry_that_is_or_opens_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zipped(entry(bytes(200_000)))
    log = open_first(tmp_path, bomb, entry(bytes(150_000)), entry(bytes(90_000)))
    monkeypatch.setattr("kafkalog_broker.server.view07.MAX_DECOMPRESSED_BYTES", 100_000)
    with pytest.raises(ServerError, match="decompress") as caught:
        read(log, 0)
    assert caught.value.code == REFUSED
    with pytest.raises(ServerError, match="it has 150010 bytes; the limit is 100000"):
        read(log, len(bomb))
    assert len(values(read(log, len(bomb) + 150_010))) == 1


def test_a_disk_that_fails_is_said_to_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FileSlice) -> bytes:
        raise OSError(errno.EIO, "no")

    log = open_first(tmp_path, ONE)
    monkeypatch.setattr(FileSlice, "read", refuse)
    with pytest.raises(StorageError, match="reading my_topic_0 failed"):
        read(log, 0)
    assert not log.directory.online


def test_a_time_leads_to_the_segment_that_was_changed_then_or_later(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, generation="0.7", clock=clock, segment_bytes=20, flush_messages=1)[1]
    for _ in range(6):
        log.append(ONE)
        clock.advance(1)
    view = View07(Metrics())(log, Allowance())
    assert [s.base_offset for s in log.facts()] == [0, 26, 52]
    changed = [START_MS + 1000, START_MS + 3000, START_MS + 5000]
    assert view.offset_for_timestamp(0) == (changed[0], 0)
    assert view.offset_for_timestamp(changed[0]) == (changed[0], 0)
    assert view.offset_for_timestamp(changed[0] + 1) == (changed[1], 26)
    assert view.offset_for_timestamp(changed[2]) == (changed[2], 52)
    assert view.offset_for_timestamp(changed[2] + 1) is None
    assert view.max_timestamp() is None


def test_what_was_made_is_counted(tmp_path: Path) -> None:
    metrics = Metrics()
    log = open_first(tmp_path, ONE + zipped(ONE, ONE))
    data = read(log, 0, view=View07(metrics))
    sample = metrics.registry.get_sample_value
    assert sample("kafkalog_broker_converted_messages_total") == 3
    assert sample("kafkalog_broker_converted_bytes_total") == len(data)


def test_batches_go_to_a_socket_as_it_takes_them() -> None:
    data = bytes(range(256)) * 20_000
    batches, got = MemorySlice(data, 2), b""
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        while not batches.send_to(left):
            got += right.recv(1 << 20)
        while len(got) < len(data):
            got += right.recv(1 << 20)
    assert got == data
    assert len(batches) == len(data)
    batches.close()
