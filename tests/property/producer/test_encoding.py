from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.config.producer_config import MAGICS, ProducerConfig
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.producer.encoder import encoding_of

cells = st.none() | st.binary(max_size=60)
rows = st.lists(st.tuples(cells, cells, st.integers(0, 2**50)), min_size=1, max_size=20)
codecs = st.sampled_from([codec for codec in Codec if codec is not Codec.ZSTD])


def config(message_format: str, codec: Codec) -> ProducerConfig:
    return ProducerConfig("a:1", message_format=message_format, compression_type=codec.name.lower())


@given(rows, codecs, st.sampled_from(list(MAGICS)), st.booleans())
def test_what_is_sent_is_read_with_what_its_format_has_of_times(
    found: list[Any], codec: Codec, message_format: str, keyless: bool
) -> None:
    values, keys, times = (list(column) for column in zip(*found, strict=True))
    encoding = encoding_of(config(message_format, codec))
    kept = encoding.kept_times(times)
    assert kept == (times if message_format != "v0" else [-1] * len(times))
    data = encoding.encode(values, None if keyless else keys, kept, None, (-1, -1, -1))
    assert {magic_at(memoryview(data), f.position) for f in frames(data)} == {MAGICS[message_format]}
    assert [
        (r.offset, r.value, r.key, r.timestamp) for r in records(data, start_offset=0, max_bytes=1 << 20)
    ] == [(i, value, None if keyless else keys[i], kept[i]) for i, value in enumerate(values)]


@given(rows, st.sampled_from(["v0", "v1"]))
def test_no_message_is_larger_than_its_bound(found: list[Any], message_format: str) -> None:
    values, keys, times = (list(column) for column in zip(*found, strict=True))
    encoding = encoding_of(config(message_format, Codec.NONE))
    bound = sum(encoding.size_bound(len(v or b"") + len(k or b""), (), True) for v, k, _ in found)
    assert len(encoding.encode(values, keys, times, None, (-1, -1, -1))) == bound
