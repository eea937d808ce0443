"""One changed bit in a base offset, which no checksum covers: never a jump, always told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.scan import FoundBatch, scan
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import frames
from tests.support.log.data_directories import checked, damages, segments
from tests.support.log.logs import START_MS, batch, contents, crash, message_set, open_log
from tests.support.manual_clock import ManualClock

CONFIG: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 300, "flush_ms": 1000}
BITS = [(byte, bit) for byte in range(8) for bit in range(8)]
CHANCE = random.Random(5)


def v2(number: int) -> bytearray:
    return batch(b"a%d" % number, b"b", b"c" * (number % 9), timestamps=[START_MS + number] * 3)


def plain(magic: int) -> Callable[[int], bytearray]:
    return lambda number: message_set(b"a%d" % number, magic=magic, timestamps=[START_MS + number])


def packed(magic: int) -> Callable[[int], bytearray]:
    return lambda number: message_set(
        b"a%d" % number, b"b", b"c" * (number % 9), magic=magic, codec=Codec.GZIP,
        timestamps=[START_MS + number] * 3,
    )  # fmt: skip


KINDS = {"v2": v2, "v0": plain(0), "v1": plain(1), "v0 in gzip": packed(0), "v1 in gzip": packed(1)}


def write(
    directory: Path, make: Callable[[int], bytearray], *, clean: bool = True, flushed: bool = True
) -> Path:
    clock = ManualClock(START_MS)
    manager, log = open_log(directory, clock=clock, **CONFIG)
    for number in range(50 if len(make(0)) > 60 else 150):
        log.append(make(number))
    if flushed:
        clock.advance(2)
        manager.flush_due()
    manager.close() if clean else crash(manager)
    return log.path


def places(path: Path) -> list[tuple[int, int, int]]:
    """Position, and the offsets from the first up to the next one's, of what lies in a segment."""
    file, data = FileSystem().open(path), path.read_bytes()
    try:
        found, first = [], int(path.stem)
        for each in scan(file, len(data), first):
            assert not hasattr(each, "reason")
            found.append((each.position, first, each.next_offset))  # type: ignore[union-attr]
            first = found[-1][2]
        return found
    finally:
        file.close()


def flipped(path: Path, position: int, bits: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The file with each of these bits changed in turn; afterwards as it was."""
    whole = path.read_bytes()
    for byte, bit in bits:
        data = bytearray(whole)
        data[position + byte] ^= 1 << bit
        path.write_bytes(data)
        yield byte, bit
    path.write_bytes(whole)


def served(log: Log, offset: int) -> bool:
    """Whether a reader gets the offset; nothing else is given in its place."""
    try:
        data = contents(log.read(offset, 1, at_least_one=True))
    except CorruptMessage:
        return False
    first = next(frames(data))
    assert first.last_offset >= offset
    assert not first.first_is_known or first.first_offset <= offset
    return True


@pytest.mark.long("every bit of every offset")
@pytest.mark.parametrize("kind", KINDS)
def test_verify_log_finds_every_flip(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, KINDS[kind])
    for segment in (segments(path)[1], segments(path)[-1]):
        found = places(segment)
        for position, _, _ in (found[0], found[1], found[-1]):
            for byte, bit in flipped(segment, position, BITS):
                told = damages(checked(path))
                assert told, (segment.name, position, byte, bit)
                assert any(where in (None, position) or where > position for _, where, _ in told)
                assert len(told) <= 3, "not once for each entry behind it"
    assert damages(checked(path)) == []


@pytest.mark.long("every bit of every offset")
@pytest.mark.parametrize("indexes", [True, False], ids=["with indexes", "without"])
@pytest.mark.parametrize("kind", ["v2", "v0", "v1"])
def test_only_what_is_in_the_changed_batch_is_refused(tmp_path: Path, kind: str, indexes: bool) -> None:
    path = write(tmp_path, KINDS[kind])
    segment = segments(path)[1]
    found = places(segment)
    end = int(segments(path)[2].stem)
    for number in (0, 1, 4, len(found) - 1):
        position, first, behind = found[number]
        for byte, bit in flipped(
            segment, position, [*CHANCE.sample(BITS, 6), (2, 1), (5, 0), (7, 0), (7, 1)]
        ):
            for index in path.glob("*index") if not indexes else ():
                index.unlink()
            manager, log = open_log(tmp_path, **CONFIG)
            refused = [o for o in range(int(segment.stem) - 3, end + 3) if not served(log, o)]
            assert refused == list(range(first, behind)), (number, byte, bit)
            manager.close()


@pytest.mark.parametrize("kind", ["v0 in gzip", "v1 in gzip"])
def test_no_offset_of_a_changed_set_is_replaced_by_others_far_from_it(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, KINDS[kind])
    segment = segments(path)[1]
    position, first, behind = places(segment)[3]
    for _ in flipped(segment, position, [(2, 1), (5, 0), (4, 7)]):
        manager, log = open_log(tmp_path, **CONFIG)
        assert not any(served(log, offset) for offset in range(first, behind))
        manager.close()


def test_a_reader_gets_what_lies_before_the_changed_batch(tmp_path: Path) -> None:
    path = write(tmp_path, v2)
    segment = segments(path)[1]
    found = places(segment)
    base, (position, first, _) = int(segment.stem), found[6]
    for _ in flipped(segment, position, [(2, 1), (5, 0)]):
        manager, log = open_log(tmp_path, **CONFIG)
        data = contents(log.read(base, position + 20, at_least_one=False))
        assert [frame.next_offset for frame in frames(data)] == [behind for _, _, behind in found[:6]]
        with pytest.raises(CorruptMessage, match=f"where (offset )?{first} should be"):
            log.read(first, 1000, at_least_one=True)
        manager.close()


def test_a_time_is_not_looked_up_across_a_changed_batch(tmp_path: Path) -> None:
    path = write(tmp_path, v2)
    segment = segments(path)[1]
    number = 4
    position, first, _ = places(segment)[number]
    wanted = START_MS + first // 3
    for _ in flipped(segment, position, [(2, 1), (5, 0), (7, 1)]):
        manager, log = open_log(tmp_path, **CONFIG)
        with pytest.raises(CorruptMessage):
            log.offset_for_timestamp(wanted)
        assert log.offset_for_timestamp(START_MS) == (START_MS, 0)
        manager.close()


@pytest.mark.parametrize("bits", [(2, 1), (5, 0), (7, 0)])
def test_after_sigkill_a_change_above_the_recovery_point_is_cut_off_and_one_below_is_left(
    tmp_path: Path, bits: tuple[int, int]
) -> None:
    for flushed in (True, False):
        path = write(tmp_path / str(flushed), v2, clean=False, flushed=flushed)
        newest = segments(path)[-1]
        position, first, behind = places(newest)[1]
        for _ in flipped(newest, position, [bits]):
            manager, log = open_log(tmp_path / str(flushed), **CONFIG)
            assert log.end_offset == (150 if flushed else first)
            refused = [o for o in range(log.end_offset - 20, log.end_offset) if not served(log, o)]
            assert refused == [o for o in range(first, behind) if flushed]
            assert log.append(v2(1)).base_offset == log.end_offset - 3
            crash(manager)
            break
    assert isinstance(next(iter(scan(FileSystem().open(newest), newest.stat().st_size, 0))), FoundBatch)


@pytest.mark.parametrize("kind", KINDS)
def test_after_sigkill_nothing_below_the_recovery_point_is_cut_off_for_one_bit(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path, KINDS[kind], clean=False)
    newest = segments(path)[-1]
    before, found = newest.read_bytes(), places(newest)
    end = found[-1][2]
    for bit in [(0, 7), (2, 1), (5, 0), (7, 0), (7, 3)]:
        for _ in flipped(newest, found[0][0], [bit]):
            damaged = newest.read_bytes()
            manager, log = open_log(tmp_path, **CONFIG)
            assert log.end_offset == end
            assert newest.read_bytes() == damaged
            assert served(log, end - 1)
            crash(manager)
        assert newest.read_bytes() == before
