"""Types of partition columns where files lie in several kinds of directories; names of free options."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import types as t

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.load import Load
from pyspark_kafkalog.loads.reading import common_types, option_texts

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


A_LOAD: Load = object.__new__(Load)
NO_SPARK: Any = None
CALLS: dict[str, Callable[..., Any]] = {
    "write_files": lambda **given: A_LOAD.write_files("/table", **given),
    "write_parquet": lambda **given: A_LOAD.write_parquet("/table", **given),
    "write_orc": lambda **given: A_LOAD.write_orc("/table", **given),
    "write_delta": lambda **given: A_LOAD.write_delta("/table", **given),
    "write_iceberg": lambda **given: A_LOAD.write_iceberg("table", **given),
    "read_load": lambda **given: kafkalog.read_load(NO_SPARK, "/table", **given),
    "compact": lambda **given: kafkalog.compact(NO_SPARK, "/table", **given),
}


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        ("write_parquet", "partition_by_tme", "partition_by_time"),
        ("write_orc", "partitionBy", "partition_by"),
        ("write_files", "formt", "format"),
        ("write_delta", "partiton_by", "partition_by"),
        ("write_iceberg", "partition-by", "partition_by"),
        ("write_parquet", "options", "**options"),
        ("read_load", "asof", "as_of"),
        ("compact", "target_byte", "target_bytes"),
    ],
)
def test_a_misspelt_argument_is_not_taken_for_an_option_of_spark(call: str, name: str, meant: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name} is not an argument.*mean {re.escape(meant)}\?"):
        CALLS[call](**{name: "x"})


def test_options_of_spark_are_passed_as_texts() -> None:
    options = {"replaceWhere": "n > 1", "mergeSchema": True, "basePath": "/t", "partitionOverwriteMode": None}
    passed = {"replaceWhere": "n > 1", "mergeSchema": "true", "basePath": "/t"}
    for function in (Load.write_files, Load.write_delta, kafkalog.read_load, kafkalog.compact):
        assert option_texts(options, function) == passed
