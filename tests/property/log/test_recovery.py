from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.batch import MAGIC, magic_at, read_header, verify_crc
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set, read_entry, verify_entry
from pyspark_kafkalog.types import NewRecord
from tests.support.examples import examples
from tests.support.log.logs import FIRST, batch, contents, crash, open_log

OLD = NewRecord(b"old", b"key", 5)
PIECES = st.lists(
    st.one_of(
        st.integers(0, 6).map(lambda offset: bytes(batch(b"x", b"y" * offset, base_offset=offset))),
        st.integers(0, 3).map(lambda count: bytes(batch(b"z" * 100 * count, base_offset=count * 2))),
        st.integers(0, 6).map(lambda offset: encode_set([OLD], magic=offset % 2, base_offset=offset)),
        st.integers(0, 6).map(
            lambda offset: encode_set([OLD] * 2, magic=offset % 2, codec=Codec.GZIP, base_offset=offset)
        ),
        st.binary(max_size=70),
        st.integers(1, 5000).map(bytes),
    ),
    max_size=6,
)


def _valid_prefix(data: bytes) -> tuple[int, int]:
    """Bytes and end offset of the entries that are whole, sound and in order; what recovery must keep."""
    position = offset = 0
    while position < len(data):
        try:
            if magic_at(data, position) < MAGIC:
                entry = read_entry(data, position)
                verify_entry(data, position, entry)
                most = 40 * entry.size if entry.is_compressed else 1
                follows = 0 <= entry.offset - offset < most
                size, end = entry.size, entry.offset + 1
            else:
                header = read_header(data, position)
                verify_crc(data, position, header)
                follows = header.base_offset == offset
                size, end = header.size, header.next_offset
        except KafkaError:
            break
        if not follows:
            break
        position, offset = position + size, end
    return position, offset


@examples(150)
@given(PIECES, st.data())
def test_whatever_is_in_a_segment_its_valid_beginning_is_the_log(
    pieces: list[bytes], data: st.DataObject
) -> None:
    bytes_left = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 2))):
        if bytes_left:
            bytes_left[data.draw(st.integers(0, len(bytes_left) - 1))] ^= data.draw(st.integers(1, 255))
    size, end = _valid_prefix(bytes(bytes_left))
    path = Path(tempfile.mkdtemp())
    try:
        manager, log = open_log(path)
        crash(manager)
        segment = log.path / f"{FIRST}.kafka"
        segment.write_bytes(bytes_left)
        manager, log = open_log(path)
        assert (log.end_offset, segment.stat().st_size) == (end, size)
        assert contents(log.read(0, 1 << 20, at_least_one=True)) == bytes_left[:size]
        assert log.append(batch(b"next")).base_offset == end
        crash(manager)
    finally:
        shutil.rmtree(path)
