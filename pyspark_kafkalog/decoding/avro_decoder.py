"""Avro values to columns, of the types of Spark's Avro source: a union with null is nullable, ``[int, long]``
a long, ``[float, double]`` a double. Source: Apache Avro 1.12, "Specification".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
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

_DECIMAL = "kafkalog-decimal"  # to fastavro, whose own reader of decimals rounds to the writer's precision
_MAX_DIGITS = 38  # of Spark's decimals, and of Arrow's that Spark takes
_MAX_DEPTH = 50


def plain(schema: Any) -> Any:
    """A schema without logical types but decimals: timestamps are cast as columns, Spark lacks the others."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {"type", "items", "values", "fields"}
    kept = {name: plain(value) if name in inner else value for name, value in schema.items()}
    if kept.pop("logicalType", None) == "decimal":
        kept["logicalType"] = _DECIMAL
    return kept


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
        self._field = "its value"

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
        if (found := self._logical(schema)) is not None:
            self._define(schema, space)
            return found
        return self._complex(schema, space, depth)

    def _complex(self, schema: Mapping[str, Any], space: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        kind = schema["type"]
        if kind in ("record", "error"):
            space = self._define(schema, space)
            fields = []
            for one in schema["fields"]:
                self._field = f"field {schema['name']}.{one['name']}"
                fields.append(pa.field(one["name"], self.of(one["type"], space, depth + 1)))
            return pa.struct(fields)
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

    def _logical(self, schema: Mapping[str, Any]) -> pa.DataType | None:
        """The type of a logical type; None for those that are read as the type below them."""
        import pyarrow as pa

        micros, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
        stages = {
            "int-date": (pa.int32(), pa.date32(), pa.date32()),
            "long-timestamp-millis": (pa.int64(), pa.timestamp("ms", "UTC"), utc),
            "long-timestamp-micros": (pa.int64(), utc, utc),
            "long-local-timestamp-millis": (pa.int64(), pa.timestamp("ms"), micros),
            "long-local-timestamp-micros": (pa.int64(), micros, micros),
        }
        name = f"{schema['type']}-{schema.get('logicalType')}"
        if name not in ("bytes-decimal", "fixed-decimal"):
            return stages[name][self._stage] if name in stages else None
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is type(scale) is int and 0 <= scale <= precision and 0 < precision <= _MAX_DIGITS:
            return pa.decimal128(precision, scale)
        raise InvalidConfig(
            f"the Avro schema has in {self._field} a decimal of precision {precision!r} and scale {scale!r}: "
            f"a column's precision is 1 to {_MAX_DIGITS}, its scale 0 to that. Give a reader's schema with "
            f"plain {schema['type']} there, or without the field"
        )


_STAGES = 3


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
            record: Any = schemaless_reader(stream, writer, self._reader)
            found = record["value"]
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
    try:
        stages = arrow_types(*(json.loads(text) for text in (*schema.references, schema.text)))
    except KeyError as e:
        raise InvalidConfig(f"not an Avro schema: {e} is missing") from e
    _decode_defaults(reader["__named_schemas"])
    return reader, stages


def _parse(schema: Schema) -> Any:
    """The schema as the only field of a record, which has the same bytes: fastavro takes names of other
    schemas, and parses once, only if a record is outermost.
    """
    try:
        from fastavro import parse_schema
        from fastavro.read import LOGICAL_READERS
        from fastavro.schema import SchemaParseException
    except ImportError as e:
        raise InvalidConfig(
            "decoding Avro needs fastavro, on driver and executors: pip install 'pyspark-kafkalog[avro]'"
        ) from e
    LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal
    named: dict[str, Any] = {}
    try:
        for text in schema.references:
            parse_schema(plain(json.loads(text)), named_schemas=named)
        value = {"name": "value", "type": plain(json.loads(schema.text))}
        return parse_schema(
            {"type": "record", "name": "kafkalog.Value", "fields": [value]}, named_schemas=named
        )
    except (SchemaParseException, ValueError, KeyError, TypeError) as e:
        raise InvalidConfig(f"not an Avro schema: {type(e).__name__}: {e}") from e


def _decimal(value: bytes, writer: Any, reader: Any = None) -> Decimal | bytes:
    """Exactly what was written; bytes for a reader who does not ask for a decimal."""
    if reader is not None and (isinstance(reader, str) or "logicalType" not in reader):
        return value
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -writer.get("scale", 0)))


def _decode_defaults(named: Mapping[str, Any]) -> None:
    """Replace the fields' defaults, which fastavro leaves as in JSON, by what decoding would return."""
    fields = [
        (f"{name}.{field['name']}", field)
        for name, schema in named.items()
        for field in schema.get("fields", ())
        if "default" in field
    ]
    decoded = []
    for name, field in fields:
        try:
            decoded.append(_default(field["type"], field["default"], named))
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidConfig(
                f"the Avro schema's field {name} has a default of another type, {field['default']!r}: {e}"
            ) from e
    for (_, field), value in zip(fields, decoded, strict=True):
        field["default"] = value


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """A default as a decoded value: of bytes it has the code points, of a record perhaps not all fields."""
    if isinstance(schema, list):
        return None if value is None else _default(next(one for one in schema if one != "null"), value, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        if len(data) != schema.get("size", len(data)):
            raise ValueError(f"its length is not {schema['size']}")
        return _decimal(data, schema) if "logicalType" in schema else data
    if kind == "array":
        return [_default(schema["items"], one, named) for one in value]
    if kind == "map":
        return {key: _default(schema["values"], one, named) for key, one in value.items()}
    if kind in ("record", "error"):
        return {
            name: _default(one["type"], value[name] if name in value else one["default"], named)
            for one in schema["fields"]
            for name in [one["name"]]
        }
    return value


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
