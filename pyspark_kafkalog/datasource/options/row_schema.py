"""The rows' schema: that of Spark's Kafka connector, whole or in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "broker": "int",
}
"""Column to the name of its Spark type, in the order of the full row."""

COLUMN_TYPES_07 = {**COLUMN_TYPES, "innerIndex": "int"}
"""The same for Kafka 0.7, with the place of a message in its compressed entry."""


def parse_columns(text: str) -> tuple[str, ...]:
    by_key = {name.lower(): name for name in COLUMN_TYPES_07}
    named = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not named or any(name not in by_key for name in named):
        raise InvalidConfig(f"columns are some of {', '.join(COLUMN_TYPES)}; got '{text}'")
    if len(set(named)) < len(named):
        raise InvalidConfig(f"columns names one twice: '{text}'")
    return tuple(by_key[name] for name in named)


def column_names(
    columns: tuple[str, ...] | None, *, include_headers: bool, include_broker: bool, per_broker: bool = False
) -> tuple[str, ...]:
    """The columns of a row. In 0.7 ``innerIndex`` comes with ``broker``: only both identify a message."""
    asked = {
        "headers": include_headers,
        "broker": include_broker,
        "innerIndex": include_broker and per_broker,
    }
    names = columns or tuple(name for name in COLUMN_TYPES if name not in asked)
    return names + tuple(name for name, wanted in asked.items() if wanted and name not in names)


def spark_schema(columns: tuple[str, ...]) -> StructType:
    from pyspark.sql import types as t

    header = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    by_name: dict[str, t.DataType] = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "array<struct<key:string,value:binary>>": t.ArrayType(header),
    }
    return t.StructType([t.StructField(name, by_name[COLUMN_TYPES_07[name]]) for name in columns])


def columns_of(schema: StructType, *, per_broker: bool = False) -> tuple[str, ...]:
    """The columns of a user's ``.schema(...)``; types must be ours, as Spark does not cast our batches, but
    for `has_local_times`.
    """
    types = COLUMN_TYPES_07 if per_broker else COLUMN_TYPES
    ours = {field.name: field for field in spark_schema(tuple(types)).fields}
    wrong = [
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
        for field in schema.fields
        if field.name not in ours
        or not field.nullable
        or (field.dataType != ours[field.name].dataType and not _is_local_time(field))
    ]
    if wrong:
        known = ", ".join(f"{name} {kind}" for name, kind in types.items())
        raise InvalidConfig(
            "Kafka source has a fixed schema: .schema(...) may leave columns out, not change them. "
            f"Columns: {known}. Wrong: {', '.join(wrong)}"
        )
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) < len(names) or not names:
        raise InvalidConfig(f".schema(...) must name one column or more, each once; got {list(names)}")
    return names


def has_local_times(schema: StructType) -> bool:
    """Whether ``timestamp`` is a timestamp_ntz: under ``spark.sql.timestampType=TIMESTAMP_NTZ`` Spark reads
    the word timestamp so.
    """
    return any(_is_local_time(field) for field in schema.fields)


def _is_local_time(field: StructField) -> bool:
    return field.name == "timestamp" and field.dataType.simpleString() == "timestamp_ntz"
