"""What a scan makes out of a segment that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import ReadOnlyFiles
from kafkalog_broker.log.scan import Damage, FoundBatch, scan
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord


def batches(count: int = 10, size: int = 100, base_offset: int = 0) -> list[bytes]:
    return [
        encode_batch([NewRecord(b"%d" % i * size, timestamp=i)], base_offset=base_offset + i)
        for i in range(count)
    ]


def scanned(path: Path, data: bytes, lowest: int = 0) -> list[FoundBatch | Damage]:
    path.write_bytes(data)
    file = ReadOnlyFiles().open(path)
    try:
        return list(scan(file, len(data), lowest))
    finally:
        file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "segment"


def offsets(found: list[FoundBatch | Damage]) -> list[int | str]:
    return [
        "damage" if isinstance(f, Damage) else f.header.base_offset if f.sound else "unsound" for f in found
    ]


def tiles(found: list[FoundBatch | Damage], size: int) -> bool:
    ends = [0, *(f.end for f in found)]
    return [f.position for f in found] == ends[:-1] and ends[-1] == size


@pytest.mark.parametrize(
    ("at", "junk", "lost"),
    [
        (8, b"\xff\xff\xff\xff", {3}),  # the length
        (16, b"\x01", {3}),  # the magic byte
        (0, bytes(300), {3, 4}),
        (50, b"\x02" * 200, {3, 4}),
        (0, b"\x02" * 61, {3}),
    ],
)
def test_after_nonsense_the_scan_finds_the_next_batch(
    path: Path, at: int, junk: bytes, lost: set[int]
) -> None:
    whole = batches()
    data = bytearray(b"".join(whole))
    begins = 3 * len(whole[0])
    data[begins + at : begins + at + len(junk)] = junk
    found = scanned(path, bytes(data))
    assert [f for f in offsets(found) if f != "damage"] == [n for n in range(10) if n not in lost]
    assert offsets(found).count("damage") == 1
    assert tiles(found, len(data))
    damage = found[3]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.end) == (begins, begins + len(lost) * len(whole[0]))
    assert damage.reason


def test_a_batch_inside_damage_that_cannot_belong_there_is_not_taken_for_one(path: Path) -> None:
    whole = batches(4, base_offset=1000)
    strange = encode_batch([NewRecord(b"from elsewhere")], base_offset=5)
    data = whole[0] + b"\0" * 20 + strange + whole[3]
    found = scanned(path, data, lowest=1000)
    assert offsets(found) == [1000, "damage", 1003]


@pytest.mark.parametrize("left", [1, 11, 12, 60, 61, 100])
def test_an_end_that_is_cut_short_is_reported_with_its_place(path: Path, left: int) -> None:
    whole = batches(3)
    found = scanned(path, whole[0] + whole[1] + whole[2][:left])
    assert offsets(found) == [0, 1, "damage"]
    assert (found[2].position, found[2].end) == (len(whole[0] + whole[1]), len(whole[0] + whole[1]) + left)


@pytest.mark.long("many megabytes")
def test_a_length_that_leads_to_the_end_of_the_file_takes_no_memory_for_it(path: Path) -> None:
    import tracemalloc

    whole = batches(2)
    size = 64 << 20
    with path.open("wb") as file:
        file.write(whole[0])
        broken = bytearray(whole[1])
        broken[8:12] = (size - len(whole[0]) - 12).to_bytes(4, "big")
        file.write(broken)
        file.truncate(size)
    file_read = ReadOnlyFiles().open(path)
    tracemalloc.start()
    found = list(scan(file_read, size, 0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    file_read.close()
    assert offsets(found) == [0, "unsound"]
    assert peak < 4 << 20
