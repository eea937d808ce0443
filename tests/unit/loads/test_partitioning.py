"""How rows are divided into directories by tasks; with Spark's own names in tests/spark/loads."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.partitioning import NULL_DIRECTORY, Partitioning

UTC = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000


def divided(partitioning: Partitioning, **columns: pa.Array) -> dict[str, list[int]]:
    """The numbers of the rows in each directory, in the order in which the directories come."""
    count = len(next(iter(columns.values())))
    rows = pa.record_batch({**columns, "row": pa.array(range(count), pa.int64())})
    return {name: part.column("row").to_pylist() for name, part in partitioning.divide(rows)}


def test_rows_keep_their_order_within_each_directory_and_lose_its_columns() -> None:
    words = pa.array(["b", "a", None, "b", "", "a"])
    numbers = pa.array([1, 1, 1, 2, 1, 1])
    rows = pa.record_batch({"w": words, "n": numbers, "row": pa.array(range(6))})
    parts = dict(Partitioning(("n", "w")).divide(rows))
    assert {name: part.to_pydict() for name, part in parts.items()} == {
        "n=1/w=b": {"row": [0]},
        "n=1/w=a": {"row": [1, 5]},
        f"n=1/w={NULL_DIRECTORY}": {"row": [2, 4]},
        "n=2/w=b": {"row": [3]},
    }


def test_values_are_written_as_spark_writes_them() -> None:
    keys = {
        "flag": pa.array([True]),
        "day": pa.array([date(1969, 7, 20)]),
        "price": pa.array([Decimal("-0.0000001")], pa.decimal128(20, 7)),
        "small": pa.array([-5], pa.int8()),
        "odd name": pa.array(["a b/c=d%e\x01ä"]),
    }
    (name,) = divided(Partitioning(tuple(keys)), **keys)
    assert name == ("flag=true/day=1969-07-20/price=-0.0000001/small=-5/odd name=a b%2Fc%3Dd%25e%01ä")


def test_days_and_hours_are_utc_before_1970_too_and_no_time_is_null() -> None:
    times = pa.array([-1, 0, 25 * HOUR, -1000, None], UTC)
    assert divided(Partitioning(time="t", grain="hour"), t=times) == {
        "day=1969-12-31/hour=23": [0],
        "day=1970-01-01/hour=0": [1],
        "day=1970-01-02/hour=1": [2],
        f"day={NULL_DIRECTORY}/hour={NULL_DIRECTORY}": [3, 4],
    }
    assert divided(Partitioning(time="t"), t=pa.array([date(2026, 11, 27)])) == {"day=2026-11-27": [0]}
    local = pa.array([-1000], pa.timestamp("us"))  # a wall clock has no such value for "no time"
    assert divided(Partitioning(time="t"), t=local) == {"day=1969-12-31": [0]}


def test_many_columns_with_many_values_meet_in_the_right_directories() -> None:
    rows = 5000
    columns = {f"k{n}": pa.array([(row * 7 + n) % (n + 3) for row in range(rows)]) for n in range(4)}
    found = divided(Partitioning(tuple(columns)), **columns)
    for name, numbers in found.items():
        values = [int(part.partition("=")[2]) for part in name.split("/")]
        assert all(values == [(row * 7 + n) % (n + 3) for n in range(4)] for row in numbers)
        assert numbers == sorted(numbers)
    assert sorted(row for numbers in found.values() for row in numbers) == list(range(rows))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Partitioning(("x",)), "partition_by names x; columns: v, t, d"),
        (Partitioning(time="x"), "partition_by_time names x; columns: v, t, d"),
        (
            Partitioning(time="v"),
            "partition_by_time=v is of type binary; it must be a timestamp or a date: cast",
        ),
        (
            Partitioning(time="d", grain="hour"),
            "partition_by_time=d is of type date; it must be a timestamp: c",
        ),
    ],
)
def test_columns_that_cannot_divide_are_named(given: Partitioning, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        given.check({"v": "binary", "t": "timestamp", "d": "date"})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("v",), "partition_by=v is of type binary; tasks divide by text, whole numbers"),
        (("t",), r"partition_by=t is of type timestamp\[us, tz=UTC\]; .*or use partition_by_time"),
        (("s", "n"), "partition_by names all columns"),
    ],
)
def test_tasks_say_what_they_do_not_divide_by(columns: tuple[str, ...], said: str) -> None:
    kinds = {"v": pa.binary(), "t": UTC, "s": pa.string(), "n": pa.int64()}
    chosen = columns if len(columns) > 1 else kinds
    with pytest.raises(InvalidConfig, match=said):
        Partitioning(columns).check_types(pa.schema({name: kinds[name] for name in chosen}))


@pytest.mark.parametrize("name", ["load", "KL_RUN", "kl_compact"])
def test_names_of_our_directories_are_taken(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"a column is called {name.lower()}, as one of the directories"):
        Partitioning().check({name: "int"})
    with pytest.raises(InvalidConfig, match="partition_by_time makes the columns day, hour: rename Day"):
        Partitioning(time="t", grain="hour").check({"t": "timestamp", "Day": "int"})
