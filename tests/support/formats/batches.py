"""Hypothesis strategies for what goes into record batches."""

from __future__ import annotations

from hypothesis import strategies as st

from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import NO_TIMESTAMP, Header, NewRecord

_blobs = st.none() | st.binary(max_size=80) | st.integers(0, 9000).map(bytes)
_timestamps = st.just(NO_TIMESTAMP) | st.integers(0, 1 << 42)
_headers: st.SearchStrategy[tuple[Header, ...]] = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3
).map(tuple)

new_records = st.builds(NewRecord, value=_blobs, key=_blobs, timestamp=_timestamps, headers=_headers)
codecs = st.sampled_from(Codec)
MAX_BYTES = 1 << 24
"""More than any batch of these strategies decompresses to."""
