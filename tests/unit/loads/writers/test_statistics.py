"""What a task says of a file's columns."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.loads.writers.statistics import ColumnStatistics, statistics


def of(*groups: pa.Array) -> ColumnStatistics:
    """The statistics of a column in one file with these row groups."""
    schema, found = pa.schema({"c": groups[0].type}), list[Any]()
    with pq.ParquetWriter(io.BytesIO(), schema, metadata_collector=found) as writer:
        for group in groups:
            writer.write_table(pa.table({"c": group}))
    return statistics(found[0], schema)["c"]


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.int8(), [-3, None, 5], -3, 5),
        (pa.timestamp("us", "UTC"), [-1000, 7], -1000, 7),
        (pa.date32(), [-5, 20_000], -5, 20_000),
        (pa.decimal128(30, 2), [Decimal("-12.50"), Decimal("3")], "-12.50", "3.00"),
        (pa.string(), ["b", "ä", "a"], "a", "ä"),
        (pa.string(), ["a", "b" * 65], None, None),
        (pa.float64(), [1.0, float("nan")], None, None),
        (pa.bool_(), [True], None, None),
        (pa.int64(), [None, None], None, None),
    ],
)
def test_bounds_are_those_of_the_values(
    kind: pa.DataType, values: list[Any], least: Any, greatest: Any
) -> None:
    found = of(pa.array(values, kind))
    assert (found.values, found.nulls) == (len(values), values.count(None))
    assert (found.least, found.greatest) == (least, greatest)


def test_row_groups_are_put_together() -> None:
    found = of(*(pa.array(values, pa.int64()) for values in ([5, None], [None], [-2], [9, 1])))
    assert (found.values, found.nulls, found.least, found.greatest) == (6, 2, -2, 9)
    long = of(pa.array(["a"]), pa.array(["b" * 100]))
    assert (long.least, long.greatest) == (None, None)
    money = of(*(pa.array([Decimal(text)], pa.decimal128(9, 0)) for text in ("9", "10", "-1")))
    assert (money.least, money.greatest) == ("-1", "10")
