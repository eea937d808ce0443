"""Whatever a file holds: a scan covers it without a gap, and finds every batch that was left whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.log.filesystem import ReadOnlyFiles
from broker.log.scan import Damage, FoundBatch, scan
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord

BATCHES = [encode_batch([NewRecord(b"x" * (40 * i), timestamp=i)], base_offset=i) for i in range(8)]


def scanned(data: bytes) -> list[FoundBatch | Damage]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment"
        path.write_bytes(data)
        file = ReadOnlyFiles().open(path)
        try:
            return list(scan(file, len(data), 0))
        finally:
            file.close()


def check_tiles(found: list[FoundBatch | Damage], size: int) -> None:
    position = 0
    for each in found:
        assert each.position == position
        assert each.end > position
        position = each.end
    assert position == size


@given(st.binary(max_size=600))
def test_garbage_is_covered_to_its_end(data: bytes) -> None:
    check_tiles(scanned(data), len(data))


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.binary(min_size=1, max_size=30)), max_size=4)
)
def test_every_batch_that_was_not_touched_is_found(wounds: list[tuple[int, int, bytes]]) -> None:
    wounded = [bytearray(each) for each in BATCHES]
    for number, at, junk in wounds:
        end = min(at + len(junk), len(wounded[number]))
        wounded[number][at:end] = junk[: end - at]
    data = b"".join(wounded)
    found = scanned(data)
    check_tiles(found, len(data))
    sound = {each.position for each in found if isinstance(each, FoundBatch) and each.sound}
    position = 0
    for number, each in enumerate(wounded):
        if each == BATCHES[number]:
            assert position in sound, number
        position += len(each)
