from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import InvalidRecord
from pyspark_kafkalog.producer.columns import Columns, arrow_columns

NOW = 1_700_000_000_000
CELLS = [b"a", None, b"", b"abc", None]


def only(table: pa.Table | pa.RecordBatch) -> Columns:
    (columns,) = arrow_columns(table, NOW)
    return columns


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()],
)
def test_every_text_and_binary_type_is_read(kind: pa.DataType) -> None:
    whole = pa.array([b"before", *CELLS, b"after"], pa.binary()).cast(kind)
    assert only(pa.table({"value": whole})).values == [b"before", *CELLS, b"after"]
    assert only(pa.table({"value": whole.slice(1, 5)})).values == CELLS
    assert only(pa.record_batch({"value": whole.slice(1, 5)})).values == CELLS


def test_dictionaries_and_nulls_are_read() -> None:
    words = pa.array(["x", "y", "x", None]).dictionary_encode()
    found = only(pa.table({"value": words, "key": pa.nulls(4)}))
    assert found.values == [b"x", b"y", b"x", None]
    assert found.keys is None


def test_rows_without_a_time_get_the_present() -> None:
    assert only(pa.table({"value": [b"a", b"b"]})).times == [NOW, NOW]
    times = pa.array([5, None], pa.int64())
    assert only(pa.table({"value": [b"a", b"b"], "timestamp": times})).times == [5, NOW]


def test_times_are_cut_to_milliseconds() -> None:
    at = datetime.datetime(2013, 1, 1, 0, 0, 0, 123_999, tzinfo=datetime.timezone.utc)
    for unit in ("us", "ns"):
        column = pa.array([at], pa.timestamp(unit, "UTC"))
        assert only(pa.table({"value": [b""], "timestamp": column})).times == [1_356_998_400_123]


def test_headers_and_partitions_are_read() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None], kind)
    partitions = pa.array([2, None, 0], pa.int16())
    found = only(pa.table({"value": [b""] * 3, "headers": headers, "partition": partitions}))
    assert found.headers == [(("a", b"1"), ("a", None)), (), ()]
    assert found.partitions == [2, None, 0]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"key": ["a"]}, "value is required"),
        ({"value": ["a"], "topic": ["t"]}, "columns value, topic cannot be sent"),
        ({"value": [1]}, "column value is of type int64"),
        ({"value": ["a"], "key": [1.5]}, "column key is of type double"),
        ({"value": ["a"], "timestamp": ["now"]}, "column timestamp is of type string"),
        ({"value": ["a"], "partition": ["0"]}, "column partition is of type string"),
        ({"value": ["a"], "headers": [[1]]}, "column headers is of type list"),
        ({"value": ["a"], "headers": [[{"name": "a"}]]}, "column headers is of type list"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_name(
    columns: dict[str, list[object]], complaint: str
) -> None:
    with pytest.raises(InvalidRecord, match=complaint):
        list(arrow_columns(pa.table(columns), NOW))


def test_a_large_table_comes_in_pieces() -> None:
    table = pa.table({"value": [b"%d" % i for i in range(150_000)]})
    pieces = list(arrow_columns(table, NOW))
    assert [len(piece) for piece in pieces] == [65_536, 65_536, 18_928]
    assert [value for piece in pieces for value in piece.values] == [b"%d" % i for i in range(150_000)]


def test_the_most_rows_within_a_room_are_found() -> None:
    found = only(pa.table({"value": [bytes(100)] * 10}))
    each = found.size(0, 1)
    assert found.most_within(0, 10, 3 * each) == 3
    assert found.most_within(4, 10, 3 * each - 1) == 6
    assert found.most_within(4, 10, 0) == 4
    assert found.most_within(4, 10, 1 << 30) == 10


def test_rows_are_selected_in_the_order_asked_for() -> None:
    found = only(pa.table({"value": ["a", "b", "c"], "key": ["1", "2", "3"], "timestamp": [1, 2, 3]}))
    chosen = found.select([2, 0])
    assert (chosen.values, chosen.keys, chosen.times) == ([b"c", b"a"], [b"3", b"1"], [3, 1])
