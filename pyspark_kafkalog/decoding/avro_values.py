"""Avro values to columns, of the types of Spark's Avro source: a union with null is nullable, ``[int, long]``
a long, ``[float, double]`` a double. Source: Apache Avro 1.12, "Specification".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.schema_registry import (
    HEADER_BYTES,
    Registry,
    Schema,
    Undecodable,
    decode_column,
    schema_id,
)
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = "decimal"
"""The only logical type decoded by fastavro; timestamps are cast as columns, Spark lacks the others."""

_MAX_DEPTH = 50


def plain(schema: Any) -> Any:
    """A schema without the logical types that stay numbers or strings while decoding."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = schema.get("logicalType") != _KEPT
    inner = {"type", "items", "values", "fields"}
    return {
        name: plain(value) if name in inner else value
        for name, value in schema.items()
        if not (dropped and name == "logicalType")
    }


def arrow_types(*schemas: Any) -> list[pa.DataType]:
    """Types for the last schema's values, from that of decoded values to the column's: a chain of casts."""
    found: list[pa.DataType] = []
    for stage in range(_STAGES):
        types = _Types(stage)
        kind = [types.of(schema, "", 0) for schema in schemas][-1]
        if not found or kind != found[-1]:
            found.append(kind)
    return found


class _Types:
    """One walk over schemas, which define a named type at first use. *Not thread-safe.*"""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, space: str, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise InvalidConfig(
                f"the Avro schema nests more than {_MAX_DEPTH} deep, or within itself: a column cannot"
            )
        if isinstance(schema, list):
            return self._union(schema, space, depth)
        if isinstance(schema, str):
            return self._primitive(schema, space, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise InvalidConfig(f"not an Avro schema: {schema!r}")
        if "logicalType" in schema and (found := _logical(schema, self._stage)) is not None:
            self._define(schema, space)
            return found
        return self._complex(schema, space, depth)

    def _complex(self, schema: Mapping[str, Any], space: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        kind = schema["type"]
        if kind in ("record", "error"):
            space = self._define(schema, space)
            return pa.struct(
                [pa.field(one["name"], self.of(one["type"], space, depth + 1)) for one in schema["fields"]]
            )
        if kind == "enum":
            self._define(schema, space)
            return pa.string()
        if kind == "fixed":
            self._define(schema, space)
            return pa.binary()
        if kind == "array":
            return pa.list_(self.of(schema["items"], space, depth + 1))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], space, depth + 1))
        return self.of(kind, space, depth + 1)

    def _define(self, schema: Mapping[str, Any], space: str) -> str:
        if "name" not in schema:
            return space
        name = schema["name"]
        space = name.rpartition(".")[0] or schema.get("namespace", space)
        full = name if "." in name else f"{space}.{name}".lstrip(".")
        self._named[full] = schema, space
        return space

    def _primitive(self, name: str, space: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        known = {
            "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
            "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
        }  # fmt: skip
        if name in known:
            return known[name]
        for full in (name, f"{space}.{name}"):
            if full in self._named:
                schema, inside = self._named[full]
                return self.of(schema, inside, depth + 1)
        raise InvalidConfig(f"the Avro schema has an unknown type {name!r}")

    def _union(self, schema: list[Any], space: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        others = [one for one in schema if one != "null"]
        kinds = [self.of(one, space, depth + 1) for one in others]
        if len(set(kinds)) == 1:
            return kinds[0]
        for wide, narrow in ((pa.int64(), pa.int32()), (pa.float64(), pa.float32())):
            if set(kinds) == {wide, narrow}:
                return wide
        raise InvalidConfig(
            f"the Avro schema has a union of {schema}: a column has one type, besides null. Give a reader's "
            "schema without the field"
        )


_STAGES = 3


def _logical(schema: Mapping[str, Any], stage: int) -> pa.DataType | None:
    import pyarrow as pa

    name = schema["logicalType"]
    if name == _KEPT:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    micros, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
    stages = {
        "date": (pa.int32(), pa.date32(), pa.date32()),
        "timestamp-millis": (pa.int64(), pa.timestamp("ms", "UTC"), utc),
        "timestamp-micros": (pa.int64(), utc, utc),
        "local-timestamp-millis": (pa.int64(), pa.timestamp("ms"), micros),
        "local-timestamp-micros": (pa.int64(), micros, micros),
    }
    return stages[name][stage] if name in stages else None


@dataclass(frozen=True)
class AvroFormat:
    """Text only, as it is pickled. Writers' schemas are in ``registry`` or ``writers``, else ``reader``."""

    reader: Schema
    registry: str | None = None
    writers: tuple[tuple[int, str], ...] = ()
    framed: bool = True


class AvroDecoder:
    """Decodes Avro columns and caches schemas. *Not thread-safe: belongs to one task's process.*"""

    def __init__(self, format: AvroFormat) -> None:
        self._format = format
        self._registry = None if format.registry is None else Registry(format.registry)
        self._reader, self._stages = parsed(format.reader)
        self.kind = self._stages[-1]
        self._given = dict(format.writers)
        self._writers: dict[int, Any] = {}
        self._shape = _shape(self.kind)

    def __call__(self, values: pa.Array) -> pa.StructArray:
        """Columns ``value`` and ``reason``; `RegistryError` fails the whole column."""
        return decode_column(values, self._decode, self._column)

    def _column(self, found: list[Any]) -> pa.Array:
        """Cast timestamps as a column: one by one costs several times as much."""
        import pyarrow as pa

        read, *others = self._stages
        column = pa.array(found, read)
        for kind in others:
            column = column.cast(kind)
        return column

    def _decode(self, value: bytes) -> Any:
        from fastavro import schemaless_reader

        number = schema_id(value) if self._format.framed else None
        writer = self._reader if number is None else self._writer(number)
        stream = io.BytesIO(value)
        stream.seek(0 if number is None else HEADER_BYTES)
        said = "the schema" if number is None else f"schema {number}"
        try:
            found = schemaless_reader(stream, writer, self._reader)
        except Exception as e:
            # fastavro may raise anything for other bytes: EOFError, IndexError, struct.error, ...
            raise Undecodable(f"not Avro of {said}: {type(e).__name__}: {e}".rstrip(": ")) from e
        if stream.tell() != len(value):
            raise Undecodable(f"not Avro of {said}: {len(value) - stream.tell()} bytes are left over")
        return found if self._shape is None else self._shape(found)

    def _writer(self, number: int) -> Any:
        if number not in self._writers:
            self._writers[number] = self._fetch(number)
        writer = self._writers[number]
        if isinstance(writer, str):
            raise Undecodable(writer)
        return writer

    def _fetch(self, number: int) -> Any:
        """The writer's schema for an id, or the reason for its absence."""
        if self._registry is not None:
            found = self._registry.by_id(number)
            if found is None:
                return f"the registry {self._registry.url} has no schema {number}"
            if found.kind != "AVRO":
                return f"schema {number} is {found.kind}, not Avro"
        elif self._given:
            if number not in self._given:
                known = ", ".join(map(str, sorted(self._given)))
                return f"schema {number} is unknown; known are {known}"
            found = Schema(self._given[number])
        else:
            return self._reader
        try:
            return _parse(found)
        except InvalidConfig as e:
            return f"schema {number}: {e}"


def parsed(schema: Schema) -> tuple[Any, list[pa.DataType]]:
    """A schema for fastavro, and its `arrow_types`. Raises `InvalidConfig`."""
    reader = _parse(schema)
    return reader, arrow_types(*(json.loads(text) for text in (*schema.references, schema.text)))


def _parse(schema: Schema) -> Any:
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException
    except ImportError as e:
        raise InvalidConfig(
            "decoding Avro needs fastavro, on driver and executors: pip install 'pyspark-kafkalog[avro]'"
        ) from e
    named: dict[str, Any] = {}
    try:
        for text in schema.references:
            parse_schema(plain(json.loads(text)), named_schemas=named)
        return parse_schema(plain(json.loads(schema.text)), named_schemas=named)
    except (SchemaParseException, ValueError, KeyError, TypeError) as e:
        raise InvalidConfig(f"not an Avro schema: {type(e).__name__}: {e}") from e


def _shape(kind: pa.DataType) -> Callable[[Any], Any] | None:
    import pyarrow.types as t

    if t.is_map(kind):
        item = _shape(kind.item_type)
        return lambda v: None if v is None else [(k, item(one) if item else one) for k, one in v.items()]
    if t.is_list(kind):
        inner = _shape(kind.value_type)
        return None if inner is None else lambda v: None if v is None else [inner(one) for one in v]
    if t.is_struct(kind):
        fields = {one.name: found for one in kind if (found := _shape(one.type)) is not None}
        if not fields:
            return None
        return lambda v: (
            None if v is None else {**v, **{name: found(v[name]) for name, found in fields.items()}}
        )
    return None
