"""Types of a table's columns under Spark's names, by which all writers of one table agree, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

_SIMPLE = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def types_of(schema: pa.Schema) -> dict[str, str]:
    """As `simple_types`, of Arrow columns that `storable` returned."""
    return simple_types(spark_schema_text(schema))


def simple_types(schema: str) -> dict[str, str]:
    """The columns of a Spark schema in JSON, as Spark stores it in footers, with their types as Spark prints
    them: ``{"offset": "bigint", "headers": "array<struct<...>>"}``.
    """
    return {field["name"]: _simple(field["type"]) for field in json.loads(schema)["fields"]}


def _simple(kind: Any) -> str:
    if isinstance(kind, str):
        return _SIMPLE.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_simple(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_simple(kind['keyType'])},{_simple(kind['valueType'])}>"
    if kind["type"] == "struct":
        return f"struct<{','.join(field['name'] + ':' + _simple(field['type']) for field in kind['fields'])}>"
    return str(kind["type"])


def spark_schema_text(schema: pa.Schema) -> str:
    """The Spark schema of Arrow columns that `storable` returned, in JSON."""
    return json.dumps(_struct(schema), separators=(",", ":"))


def storable(schema: pa.Schema) -> pa.Schema:
    """The columns as a Parquet table that Spark reads holds them: times in microseconds, and only types that
    Spark has; metadata of fields stay. `InvalidConfig` names types that Spark has not.
    """
    import pyarrow as pa

    stored = [_stored_field(field) for field in schema]
    unknown = [f"{field.name} {field.type}" for field, one in zip(schema, stored, strict=True) if one is None]
    if unknown:
        raise InvalidConfig(
            f"a table that Spark reads has no type for {', '.join(unknown)}: cast in transform="
        )
    return pa.schema(stored)


def _stored_field(field: pa.Field, name: str | None = None) -> pa.Field | None:
    import pyarrow as pa

    kind = _stored(field.type)
    return None if kind is None else pa.field(name or field.name, kind, metadata=field.metadata)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if t.is_dictionary(kind):
        return _stored(kind.value_type)
    if t.is_struct(kind):
        inner = [_stored_field(field) for field in kind]
        return None if any(one is None for one in inner) else pa.struct(inner)
    if t.is_map(kind):
        key, value = _stored_field(kind.key_field), _stored_field(kind.item_field)
        return None if key is None or value is None else pa.map_(key.with_nullable(False), value)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        element = _stored_field(kind.value_field, "element")
        return None if element is None else pa.list_(element)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    return kind if t.is_decimal128(kind) or kind in _atoms() else None


def _atoms() -> dict[pa.DataType, str]:
    import pyarrow as pa

    return {
        pa.bool_(): "boolean", pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer",
        pa.int64(): "long", pa.float32(): "float", pa.float64(): "double", pa.string(): "string",
        pa.binary(): "binary", pa.date32(): "date", pa.timestamp("us"): "timestamp_ntz",
        pa.timestamp("us", tz="UTC"): "timestamp",
    }  # fmt: skip


def _spark_type(kind: pa.DataType) -> Any:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        inside = {"keyType": _spark_type(kind.key_type), "valueType": _spark_type(kind.item_type)}
        return {"type": "map", **inside, "valueContainsNull": True}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    return _atoms()[kind]


def _struct(fields: Any) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": one.name, "type": _spark_type(one.type), "nullable": True, "metadata": {}}
            for one in fields
        ],
    }
