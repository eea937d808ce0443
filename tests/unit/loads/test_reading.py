"""Types of partition columns where files lie in several kinds of directories."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from pyspark_kafkalog.loads.reading import common_types

DAY, NUMBER, LONG, TEXT = t.DateType(), t.IntegerType(), t.LongType(), t.StringType()


def schema(kind: t.DataType) -> t.StructType:
    return t.StructType([t.StructField("value", t.BinaryType()), t.StructField("c", kind)])


@pytest.mark.parametrize(
    ("kinds", "to"),
    [
        ([(DAY, "2026-11-21"), (DAY, "2026-11-22")], {}),
        ([(NUMBER, "7"), (TEXT, "7b")], {"c": TEXT}),
        ([(NUMBER, "7"), (DAY, "2026-11-21")], {"c": TEXT}),
        ([(NUMBER, "7"), (LONG, "70000000000")], {}),
        # Rows without a time only: Spark takes the column for a text.
        ([(DAY, "2026-11-21"), (TEXT, None)], {"c": DAY}),
        ([(TEXT, None), (DAY, "2026-11-21"), (NUMBER, "7")], {"c": TEXT}),
        ([(TEXT, None), (TEXT, None)], {}),
    ],
)
def test_types_are_those_that_spark_would_find_in_one_kind_of_directories(
    kinds: list[tuple[t.DataType, str | None]], to: dict[str, t.DataType]
) -> None:
    values = [{"c": {value} - {None}, "kl_run": {"a"}} for _, value in kinds]
    assert common_types([schema(kind) for kind, _ in kinds], values) == to  # type: ignore[arg-type]


def test_without_guesses_all_are_texts() -> None:
    assert common_types([schema(NUMBER)], [{"c": {"007"}}], guess=False) == {"c": TEXT}
