"""What a crash does to a log of 0.7: a lost block, a nonsense block."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.log.logs import FIRST, contents, crash, open_log
from tests.support.protocol.wire07 import (
    entry,
    zipped,
)

FIRST_SET = entry(b"first") + entry(b"second", magic=0)
LAST = zipped(entry(b"third"), entry(b"fourth"))
GARBAGE = [bytes(200), b"\xff" * 200, random.Random(1).randbytes(200), entry(b"x")[:-1], entry(b"x", crc=7)]


def _crashed_log(path: Path) -> Path:
    """The segment of a log of two appends after a crash."""
    manager, log = open_log(path, generation="0.7", flush_messages=1)
    log.append(FIRST_SET)
    log.append(LAST)
    crash(manager)
    return log.path / f"{FIRST}.kafka"


def _recovers_to(path: Path, wanted: bytes) -> None:
    """The log is cut to ``wanted``, all of which can be read; it goes on from there, also after a crash."""
    manager, log = open_log(path, flush_messages=1)
    assert log.readable_end == log.end_offset == len(wanted)
    assert contents(log.read(0, 1 << 20, at_least_one=False)) == wanted
    assert log.append(entry(b"next")).base_offset == len(wanted)
    crash(manager)
    manager, log = open_log(path, flush_messages=1)
    assert contents(log.read(0, 1 << 20, at_least_one=False)) == wanted + entry(b"next")
    crash(manager)


def test_a_tail_torn_at_any_byte_loses_only_the_torn_entry(tmp_path: Path) -> None:
    segment = _crashed_log(tmp_path)
    for size in range(len(FIRST_SET), len(FIRST_SET + LAST) + 1):
        segment.write_bytes((FIRST_SET + LAST)[:size])
        _recovers_to(tmp_path, FIRST_SET + LAST if size == len(FIRST_SET + LAST) else FIRST_SET)


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize(
    "garbage", GARBAGE, ids=["zeros", "ones", "random", "half an entry", "an entry with a bad checksum"]
)
def test_a_nonsense_block_is_cut_off_wherever_it_begins(tmp_path: Path, garbage: bytes) -> None:
    segment = _crashed_log(tmp_path)
    for size in range(len(FIRST_SET), len(FIRST_SET + LAST) + 1):
        segment.write_bytes((FIRST_SET + LAST)[:size] + garbage)
        whole = size == len(FIRST_SET + LAST) or garbage.startswith((FIRST_SET + LAST)[size:])
        _recovers_to(tmp_path, FIRST_SET + LAST if whole else FIRST_SET)


def test_a_flipped_bit_in_what_the_checksum_covers_is_found(tmp_path: Path) -> None:
    segment = _crashed_log(tmp_path)
    start = len(FIRST_SET)
    for position in range(start + 10, start + len(LAST)):
        data = bytearray(FIRST_SET + LAST)
        data[position] ^= 0x40
        segment.write_bytes(data)
        _recovers_to(tmp_path, FIRST_SET)


def test_after_a_damaged_segment_nothing_is_served(tmp_path: Path) -> None:
    """Offsets are positions: what follows a hole would be found at offsets that are not its own."""
    manager, log = open_log(tmp_path, generation="0.7", flush_messages=1, segment_bytes=1)
    messages = [entry(b"message %d" % number) for number in range(4)]
    for message in messages:
        log.append(message)
    crash(manager)
    second = log.path / f"{len(messages[0]):011d}.kafka"
    second.write_bytes(messages[1][:-1])
    manager, log = open_log(tmp_path, segment_bytes=1)
    assert (log.start_offset, log.readable_end) == (0, len(messages[0]))
    assert sorted(path.name for path in log.path.glob("*.kafka")) == [f"{FIRST}.kafka", second.name]


def test_a_clean_stop_reads_nothing_but_the_directory(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, generation="0.7")
    log.append(FIRST_SET)
    manager.close()
    segment = log.path / f"{FIRST}.kafka"
    damaged = b"\xff" + FIRST_SET[1:]
    segment.write_bytes(damaged)  # of the same size: it is not looked into
    _, log = open_log(tmp_path)
    assert log.readable_end == len(FIRST_SET)
