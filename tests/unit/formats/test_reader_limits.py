"""How far a reader of old formats gets: by heads of entries, against the frames' own walk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.formats.batch import encode_batch, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.convert import HEAD_BYTES, readable_until
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import NewRecord
from tests.support.examples import examples

MAGICS = st.integers(0, 2)
OLD = st.builds(
    lambda magic, codec, value: encode_set([NewRecord(value)], magic=magic, codec=codec),
    st.sampled_from([0, 1]),
    st.sampled_from([Codec.NONE, Codec.GZIP]),
    st.none() | st.binary(max_size=40),
)
NEW = st.builds(
    lambda codec, value: bytes(encode_batch([NewRecord(value)], codec=codec)),
    st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]),
    st.none() | st.binary(max_size=40),
)


def walked(data: bytes, newest_magic: int) -> tuple[int, bool]:
    for frame in frames(data):
        magic = magic_at(data, frame.position)
        if magic > newest_magic:
            return frame.position, True
    return len(data), False


@examples(200)
@given(st.lists(OLD | NEW, max_size=6), MAGICS)
def test_the_walk_ends_where_the_first_entry_begins_that_the_reader_cannot_take(
    entries: list[bytes], newest_magic: int
) -> None:
    data = b"".join(entries)
    assert readable_until(data, 0, newest_magic) == walked(data, newest_magic)


@examples(50)
@given(st.lists(OLD | NEW, min_size=1, max_size=4), MAGICS, st.data())
def test_it_can_continue_wherever_the_bytes_were_cut(
    entries: list[bytes], newest_magic: int, draw: st.DataObject
) -> None:
    data, pos = b"".join(entries), 0
    size = draw.draw(st.integers(HEAD_BYTES, len(data)))
    while pos < len(data):
        passed, ends_there = readable_until(data[pos : pos + size], 0, newest_magic)
        pos += passed
        if ends_there:
            break
    assert pos == walked(data, newest_magic)[0]


@given(st.binary(max_size=80), MAGICS)
def test_nonsense_ends_the_walk_and_raises_nothing(data: bytes, newest_magic: int) -> None:
    end, _ = readable_until(data, 0, newest_magic)
    assert end >= 0
