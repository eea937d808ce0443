"""Whatever a file holds: a scan for entries of 0.7 covers it without a gap, and finds what was left whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.log.filesystem import ReadOnlyFiles
from broker.log.scan07 import Damage, FoundEntry, scan07
from tests.support.wire07 import entry

ENTRIES = [entry(b"text %d " % n * (5 * n + 1), magic=n % 2) for n in range(8)]


def scanned(data: bytes) -> list[FoundEntry | Damage]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment"
        path.write_bytes(data)
        file = ReadOnlyFiles().open(path)
        try:
            return list(scan07(file, len(data), 50))
        finally:
            file.close()


def check_tiles(found: list[FoundEntry | Damage], size: int) -> None:
    position = 0
    for each in found:
        assert each.position == position
        assert each.end > position
        if isinstance(each, FoundEntry):
            assert each.first_offset == 50 + position
        position = each.end
    assert position == size


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\0\0\0\x05\0\0\0\0\0", b"\0\0\0", *ENTRIES])))
def test_garbage_is_covered_to_its_end(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    check_tiles(scanned(data), len(data))


@given(st.integers(0, 7), st.integers(0, 12), st.binary(min_size=1, max_size=30).filter(lambda b: min(b) > 1))
def test_every_entry_but_the_one_that_was_touched_is_found(number: int, at: int, junk: bytes) -> None:
    wounded = list(ENTRIES)
    old = wounded[number]
    wounded[number] = (old[:at] + junk + old[at + len(junk) :])[: len(old)]
    data = b"".join(wounded)
    found = scanned(data)
    check_tiles(found, len(data))
    sound = {each.position for each in found if isinstance(each, FoundEntry) and each.sound}
    position = 0
    for index, each in enumerate(wounded):
        if index != number:
            assert position in sound, index
        position += len(each)
