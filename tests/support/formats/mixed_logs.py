"""Hypothesis strategies for logs of Kafka 0.8 and later that an upgrade left with several formats."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import strategies as st

from pyspark_kafkalog.formats import legacy
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.legacy import CODECS
from pyspark_kafkalog.types import NewRecord, TimestampType
from tests.support.formats.batches import codecs, new_records
from tests.support.formats.message_sets import codecs as old_codecs
from tests.support.formats.message_sets import magics, plain_records

timestamp_types = st.sampled_from(TimestampType)


@st.composite
def _offsets(draw: st.DrawFn, first: int, count: int) -> list[int]:
    """Offsets that rise from ``first`` on, with the gaps that compaction leaves."""
    gaps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    return [first + place - 1 for place in accumulate(gaps)]


@st.composite
def old_sets(draw: st.DrawFn, first: int) -> tuple[bytes, int]:
    """Messages of v0 or v1 from offset ``first`` on, plain or as one set, as a broker stores them; and the
    offset after the last.
    """
    records = draw(st.lists(plain_records, min_size=1, max_size=6))
    offsets = draw(_offsets(first, len(records)))
    data = legacy.encode_set(
        records,
        magic=draw(magics),
        codec=draw(old_codecs),
        offsets=offsets,
        timestamp_type=draw(timestamp_types),
    )
    return data, offsets[-1] + 1


@st.composite
def old_sets_of_two_magics(draw: st.DrawFn, first: int) -> tuple[bytes, int]:
    """A set with messages of v0 and of v1: a broker refuses it, and old logs may hold it all the same."""
    magic, records = draw(magics), draw(st.lists(plain_records, min_size=1, max_size=4))
    offsets = draw(_offsets(first, len(records)))
    base = first if magic else 0
    block = b"".join(
        legacy.encode_message(record, magic=draw(magics), offset=offset - base)
        for record, offset in zip(records, offsets, strict=True)
    )
    kind, codec = draw(timestamp_types), draw(st.sampled_from(CODECS[1:]))
    data = legacy.wrap_set(
        block, magic=magic, codec=codec, last_offset=offsets[-1], timestamp=77, timestamp_type=kind
    )
    return data, offsets[-1] + 1


@st.composite
def batches(draw: st.DrawFn, first: int) -> tuple[bytes, int]:
    """A batch of v2 from offset ``first`` on."""
    records: list[NewRecord] = draw(st.lists(new_records, max_size=4))
    last = max(len(records) - 1, 0)
    data = encode_batch(records, codec=draw(codecs), base_offset=first, last_offset_delta=last)
    return data, first + last + 1


@st.composite
def mixed_logs(draw: st.DrawFn) -> bytes:
    """Entries of v0, v1 and v2 in any order, all codecs, both kinds of timestamp, with gaps."""
    data, offset = b"", draw(st.integers(0, 3) | st.just(1 << 62))
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([old_sets, old_sets, old_sets_of_two_magics, batches]))
        part, offset = draw(kind(offset + draw(st.integers(0, 2))))
        data += part
    return data
