"""What a scan makes out of a segment of 0.7 that is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import ReadOnlyFiles
from kafkalog_broker.log.scan import Damage, FoundEntry07, scan07
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.compression import Codec
from tests.support.counted_calls import counted
from tests.support.protocol.wire07 import entry, zipped

EMPTY = entry(b"", magic=0)


def scanned(path: Path, data: bytes, base: int = 0) -> list[FoundEntry07 | Damage]:
    path.write_bytes(data)
    file = ReadOnlyFiles().open(path)
    try:
        return list(scan07(file, len(data), base))
    finally:
        file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "segment"


def told(found: list[FoundEntry07 | Damage]) -> list[tuple[int, int, str]]:
    return [
        (f.position, f.end, "damage" if isinstance(f, Damage) else "sound" if f.sound else "unsound")
        for f in found
    ]


def entries(count: int = 10) -> list[bytes]:
    return [entry(b"payload %d " % n * 5) for n in range(count)]


def test_an_entry_has_the_offset_of_its_first_byte(path: Path) -> None:
    whole = [EMPTY, entry(b"abc", magic=0), entry(b"abcd", attributes=0xFC), zipped(entry(b"x"))]
    found = scanned(path, b"".join(whole), base=7000)
    assert [f.first_offset for f in found if isinstance(f, FoundEntry07)] == [7000, 7009, 7021, 7035]
    assert [f.next_offset for f in found if isinstance(f, FoundEntry07)] == [
        7009,
        7021,
        7035,
        7035 + len(whole[3]),
    ]
    assert [(f.magic, f.codec, f.payload_size) for f in found[:3] if isinstance(f, FoundEntry07)] == [
        (0, Codec.NONE, 0), (0, Codec.NONE, 3), (1, Codec.NONE, 4),
    ]  # fmt: skip
    assert isinstance(found[3], FoundEntry07)
    assert (found[3].magic, found[3].codec, found[3].record_count) == (1, Codec.GZIP, None)
    assert all(state == "sound" for _, _, state in told(found))


@pytest.mark.parametrize(
    ("at", "junk", "lost"),
    [
        (0, b"\x7f\xff\xff\xff", 1),
        (0, b"\xff\xff\xff\xff", 1),
        (0, b"\0\0\0\x04", 1),
        (3, b"\x01", 1),
        (4, b"\x02", 1),
        (5, b"\x03", 1),
        (0, bytes(80), 2),
        (30, b"\xab" * 60, 2),
    ],
)
def test_after_nonsense_the_scan_finds_the_next_entry(path: Path, at: int, junk: bytes, lost: int) -> None:
    whole = entries()
    size = len(whole[0])
    data = bytearray(b"".join(whole))
    data[3 * size + at : 3 * size + at + len(junk)] = junk
    found = told(scanned(path, bytes(data)))
    assert [each for each in found if each[2] == "sound"] == [
        (n * size, (n + 1) * size, "sound") for n in range(10) if not 3 <= n < 3 + lost
    ]
    assert [each for each in found if each[2] != "sound"] == [(3 * size, (3 + lost) * size, "damage")]


def test_what_looks_like_an_empty_message_within_damage_is_not_taken_for_one(path: Path) -> None:
    whole = entries(3)
    wounded = b"\xff" * 10 + EMPTY + b"\xff" * 20
    found = told(scanned(path, whole[0] + wounded + whole[1] + whole[2]))
    begins = len(whole[0])
    assert found[1] == (begins, begins + len(wounded), "damage")
    assert [state for _, _, state in found] == ["sound", "damage", "sound", "sound"]


def test_damage_of_zeros_is_reported_as_such(path: Path) -> None:
    found = scanned(path, entries(1)[0] + bytes(5000))
    assert isinstance(found[1], Damage)
    assert (found[1].reason, found[1].end) == ("zeros where an entry should begin", len(entries(1)[0]) + 5000)


@pytest.mark.parametrize("left", [1, 4, 5, 6, 9, 10, 50])
def test_an_end_that_is_cut_short_is_reported_with_its_place(path: Path, left: int) -> None:
    whole = entries(3)
    found = scanned(path, whole[0] + whole[1] + whole[2][:left])
    size = len(whole[0])
    assert told(found)[2] == (2 * size, 2 * size + left, "damage")
    assert isinstance(found[2], Damage)
    assert found[2].reason


def test_after_much_that_is_not_an_entry_the_next_one_is_found_soon(path: Path) -> None:
    noise = random.Random(7).randbytes(2 << 20)
    last = entry(b"last")
    found, calls = counted(
        lambda: scanned(path, b"\xff" + noise + bytes(1 << 20) + b"text " * (1 << 18) + last)
    )
    assert [state for _, _, state in told(found)] == ["damage", "sound"]
    assert found[1].end - found[1].position == len(last)
    assert calls < 100_000  # of four million bytes, not one by one


def test_messages_are_made_out_whatever_the_checksum_of_their_entry_is(path: Path) -> None:
    inner = [entry(b"one"), entry(b"two", magic=0), entry(b"three")]
    data = zipped(*inner) + entry(b"plain", crc=1) + entry(b"four")
    path.write_bytes(data)
    file = ReadOnlyFiles().open(path)
    found = [f for f in scan07(file, len(data), 100) if isinstance(f, FoundEntry07)]
    assert [f.sound for f in found] == [True, False, True]
    middle = 100 + found[0].size
    assert [(bytes(m.payload), m.offset) for f in found for m in f.messages(file)] == [
        (b"one", 100), (b"two", 100), (b"three", middle),
        (b"plain", middle + found[1].size), (b"four", 100 + len(data)),
    ]  # fmt: skip
    assert [f.count(file) for f in found] == [3, 1, 1]
    file.close()


def test_a_set_that_cannot_be_opened_has_a_sound_checksum_all_the_same(path: Path) -> None:
    data = entry(b"no gzip at all", attributes=1) + zipped(entry(b"bad within", crc=1))
    path.write_bytes(data)
    file = ReadOnlyFiles().open(path)
    found = [f for f in scan07(file, len(data), 0) if isinstance(f, FoundEntry07)]
    assert [f.sound for f in found] == [True, True]
    for each in found:
        with pytest.raises(CorruptMessage):
            each.count(file)
    file.close()
