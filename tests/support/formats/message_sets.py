"""Hypothesis strategies for message sets of v0 and v1, and for logs that mix them with batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CODECS, encode_set
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, Record, TimestampType

_blobs = st.none() | st.binary(max_size=60) | st.integers(0, 3000).map(bytes)
_timestamps = st.just(NO_TIMESTAMP) | st.integers(0, 1 << 42)

magics = st.sampled_from((0, 1))
codecs = st.sampled_from(CODECS)
plain_records = st.builds(NewRecord, value=_blobs, key=_blobs, timestamp=_timestamps)
"""Records that every format can hold, but v0 without their times."""

MAX_BYTES = 1 << 22
"""More than any set of these strategies decompresses to."""


@dataclass(frozen=True)
class WrittenSet:
    """One append to a log: its bytes, and what a reader is to find in them."""

    magic: int
    codec: Codec
    data: bytes
    records: tuple[Record, ...]


def written(
    new: Sequence[NewRecord],
    magic: int,
    codec: Codec,
    offsets: Sequence[int],
    kind: TimestampType = TimestampType.CREATE_TIME,
) -> WrittenSet:
    """``new`` in this format, at these offsets. With log append time all have the time of the last one."""
    if kind is TimestampType.LOG_APPEND_TIME:
        new = [NewRecord(r.value, r.key, new[-1].timestamp, r.headers) for r in new]
    if magic == 2:
        deltas = [offset - offsets[0] for offset in offsets]
        data = encode_batch(
            new, codec=codec, base_offset=offsets[0], offset_deltas=deltas, timestamp_type=kind
        )
    else:
        data = encode_set(new, magic=magic, codec=codec, offsets=offsets, timestamp_type=kind)
    found = tuple(
        Record(
            offset,
            offset + 1,
            r.timestamp if magic else NO_TIMESTAMP,
            kind if magic else TimestampType.CREATE_TIME,
            r.key,
            r.value,
            r.headers,
        )
        for r, offset in zip(new, offsets, strict=True)
    )
    return WrittenSet(magic, codec, data, found)


@st.composite
def written_sets(
    draw: st.DrawFn, magic: st.SearchStrategy[int] = magics, *, base: int = 0, gaps: bool = True
) -> WrittenSet:
    """A set in any format of ``magic``, its offsets rising from ``base`` on."""
    new = draw(st.lists(plain_records, min_size=1, max_size=6))
    steps = draw(st.lists(st.integers(1, 4 if gaps else 1), min_size=len(new), max_size=len(new)))
    offsets = [base + sum(steps[: i + 1]) - 1 for i in range(len(new))]
    kind = draw(st.sampled_from(TimestampType))
    return written(new, draw(magic), draw(codecs), offsets, kind)


@st.composite
def mixed_logs(draw: st.DrawFn, *, gaps: bool = True) -> list[WrittenSet]:
    """Sets of v0 and v1 and batches v2 in any order, one after the other."""
    found: list[WrittenSet] = []
    base = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 5))):
        found.append(draw(written_sets(st.sampled_from((0, 1, 2)), base=base, gaps=gaps)))
        base = found[-1].records[-1].next_offset
    return found
