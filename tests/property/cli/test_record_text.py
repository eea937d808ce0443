"""What ``consume --format json`` writes, ``produce --json`` reads: the same record, whatever is in it."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.cli.record_text import Draft, from_json, to_json
from pyspark_kafkalog.types import NO_TIMESTAMP, Record, TimestampType, TopicPartition

contents = (
    st.none() | st.binary(max_size=20) | st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode)
)
names = st.text(st.characters(codec="utf-8"), max_size=5)
headers = st.lists(st.tuples(names, contents), max_size=3).map(tuple)
times = st.just(NO_TIMESTAMP) | st.integers(-(1 << 63), (1 << 63) - 1)


@given(contents, contents, headers, times, st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 2))
def test_a_record_survives_as_text(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    time: int,
    partition: int,
    offset: int,
) -> None:
    record = Record(offset, offset + 1, time, TimestampType.CREATE_TIME, key, value, headers)
    line = to_json(TopicPartition("t", partition), record)
    assert "\n" not in line
    assert json.loads(line)["offset"] == offset
    draft = from_json(line.encode())
    assert (draft.key, draft.value, tuple(draft.headers)) == (key, value, headers)
    assert draft.timestamp_ms == (None if time == NO_TIMESTAMP else time)
    assert draft.partition == partition


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["key", "value", "headers", "timestamp", "partition", "base64"]), inner
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_a_line_is_a_record_or_refused_and_nothing_else(line: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(from_json(line), Draft)
