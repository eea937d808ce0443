"""Spark takes record batches of exactly its own schema and no other."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafkalog.columnar.decoder import COLUMNS, arrow_schema
from pyspark_kafkalog.datasource.options.row_schema import COLUMN_TYPES, spark_schema
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import ENGINES, decode


def test_the_columns_are_those_of_the_data_source() -> None:
    assert tuple(COLUMN_TYPES) == COLUMNS


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[::-1], *itertools.combinations(COLUMNS, 1)])
def test_the_schema_is_what_pyspark_makes_of_the_spark_types(columns: tuple[str, ...]) -> None:
    theirs = to_arrow_schema(spark_schema(columns), timezone="UTC")
    assert arrow_schema(columns).equals(theirs, check_metadata=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_record_batches_have_that_schema_and_hold_what_it_says(engine: str) -> None:
    data = encode_batch([NewRecord(b"v", b"k", 5, (("h", b"1"),)), NewRecord(None)])
    (batch,) = decode(data, engine).batches
    assert batch.schema.equals(to_arrow_schema(spark_schema(COLUMNS), timezone="UTC"), check_metadata=True)
    batch.validate(full=True)


@pytest.mark.parametrize(
    ("columns", "text"), [((), "at least one"), (("nay",), "nay"), (("key", "key"), "twice")]
)
def test_columns_that_cannot_be_had_are_refused_by_name(columns: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        arrow_schema(columns)
