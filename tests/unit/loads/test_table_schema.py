"""Types of columns under Spark's names."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.datasource.options.row_schema import spark_schema
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.table_schema import simple_types, spark_schema_text, storable

KINDS = {
    "bool": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "text": pa.string(), "bytes": pa.binary(),
    "day": pa.date32(), "ntz": pa.timestamp("us"), "time": pa.timestamp("us", "UTC"),
    "money": pa.decimal128(20, 3), "list": pa.list_(pa.int32()), "map": pa.map_(pa.string(), pa.int64()),
    "row": pa.struct({"a b": pa.int8(), "l": pa.list_(pa.struct({"x": pa.date32()}))}),
}  # fmt: skip


def test_spark_reads_the_types_that_the_footer_names() -> None:
    stored = storable(pa.schema(KINDS))
    text = spark_schema_text(stored)
    parsed = StructType.fromJson(json.loads(text))
    assert simple_types(text) == {field.name: field.dataType.simpleString() for field in parsed.fields}
    assert simple_types(text)["row"] == "struct<a b:tinyint,l:array<struct<x:date>>>"


def test_the_sources_columns_have_the_types_of_its_spark_rows() -> None:
    ours = spark_schema_text(storable(arrow_schema(COLUMNS_07, COLUMNS_07)))
    assert StructType.fromJson(json.loads(ours)) == spark_schema(COLUMNS_07)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", "America/New_York"), pa.timestamp("us", "UTC")),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.large_list(pa.binary(16)), pa.list_(pa.field("element", pa.binary()))),
        (pa.map_(pa.string_view(), pa.timestamp("ms")), pa.map_(pa.string(), pa.timestamp("us"))),
    ],
)
def test_other_forms_of_a_type_are_stored_as_spark_has_it(kind: pa.DataType, stored: pa.DataType) -> None:
    assert storable(pa.schema({"c": kind})).field("c").type == stored


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.null(), pa.time64("us"), pa.duration("s"), pa.list_(pa.uint8()), pa.date64()]
)
def test_a_type_that_spark_has_not_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidConfig, match=r"no type for odd .*: cast in transform="):
        storable(pa.schema({"fine": pa.int64(), "odd": kind}))
