"""Whatever a file holds: a scan covers it without a gap, and finds every entry that was left whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from kafkalog_broker.disk.filesystem import ReadOnlyFiles
from kafkalog_broker.inspect.inspection import Scan
from kafkalog_broker.log.scan import FoundEntry07, scan, scan07
from kafkalog_broker.log.walk import CandidateEntry, Damage
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.types import NewRecord
from tests.support.protocol.wire07 import entry

BASE_07 = 50
BATCHES = [encode_batch([NewRecord(b"x" * (40 * i), timestamp=i)], base_offset=i) for i in range(8)]
MIXED = [
    encode_set(
        [NewRecord(b"x" * (20 * i), timestamp=i)] * (1 + i % 3 // 2),
        magic=i % 2,
        codec=Codec(i % 3),
        base_offset=i,
    )
    if i % 3
    else BATCHES[i]
    for i in range(8)
]
ENTRIES = [entry(b"text %d " % n * (5 * n + 1), magic=n % 2) for n in range(8)]


def scanned(scan: Scan, data: bytes, base_offset: int) -> list[CandidateEntry | Damage]:
    """What is found, which covers the data without a gap."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment"
        path.write_bytes(data)
        file = ReadOnlyFiles().open(path)
        try:
            found = list(scan(file, len(data), base_offset))
        finally:
            file.close()
    position = 0
    for each in found:
        assert each.position == position
        assert each.end > position
        position = each.end
    assert position == len(data)
    return found


def scanned_07(data: bytes) -> list[CandidateEntry | Damage]:
    found = scanned(scan07, data, BASE_07)
    entries = [each for each in found if isinstance(each, FoundEntry07)]
    assert [each.first_offset for each in entries] == [BASE_07 + each.position for each in entries]
    return found


def check_whole_ones_found(
    found: Iterable[CandidateEntry | Damage], pieces: Sequence[bytes], originals: Sequence[bytes]
) -> None:
    sound = {each.position for each in found if not isinstance(each, Damage) and each.sound}
    position = 0
    for number, piece in enumerate(pieces):
        if piece == originals[number]:
            assert position in sound, number
        position += len(piece)


@given(st.binary(max_size=600))
def test_garbage_is_covered_to_its_end(data: bytes) -> None:
    scanned(scan, data, 0)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\0\0\0\x05\0\0\0\0\0", b"\0\0\0", *ENTRIES])))
def test_garbage_is_covered_to_its_end_in_07(pieces: list[bytes]) -> None:
    scanned_07(b"".join(pieces))


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.binary(min_size=1, max_size=30)), max_size=4)
)
def test_every_batch_that_was_not_touched_is_found(wounds: list[tuple[int, int, bytes]]) -> None:
    wounded = [bytearray(each) for each in BATCHES]
    for number, at, junk in wounds:
        end = min(at + len(junk), len(wounded[number]))
        wounded[number][at:end] = junk[: end - at]
    check_whole_ones_found(scanned(scan, b"".join(wounded), 0), wounded, BATCHES)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.binary(min_size=1, max_size=30)), max_size=4)
)
@example([(0, 11, b"\xd9")])  # its length becomes that of two entries
def test_every_entry_of_a_mixed_log_that_was_not_touched_is_found(
    wounds: list[tuple[int, int, bytes]],
) -> None:
    wounded = [bytearray(each) for each in MIXED]
    for number, at, junk in wounds:
        end = min(at + len(junk), len(wounded[number]))
        wounded[number][at:end] = junk[: end - at]
    check_whole_ones_found(scanned(scan, b"".join(wounded), 0), wounded, MIXED)


@given(st.integers(0, 7), st.integers(0, 12), st.binary(min_size=1, max_size=30).filter(lambda b: min(b) > 1))
def test_every_entry_but_the_one_that_was_touched_is_found(number: int, at: int, junk: bytes) -> None:
    wounded = list(ENTRIES)
    old = wounded[number]
    wounded[number] = (old[:at] + junk + old[at + len(junk) :])[: len(old)]
    check_whole_ones_found(scanned_07(b"".join(wounded)), wounded, ENTRIES)
