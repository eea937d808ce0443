"""Avro values to columns: the writer's schema by the id in the header, the reader's as it was given."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.avro_types import arrow_types, plain
from pyspark_kafkalog.decoding.batches import decode_column
from pyspark_kafkalog.decoding.registry import Registry, Schema
from pyspark_kafkalog.decoding.wire import HEADER_BYTES, Undecodable, schema_id
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class AvroFormat:
    """How values are written. It is pickled into tasks, so it holds texts only.

    ``reader`` is the schema that they are read as. Writers' schemas come from the ``registry`` or from
    ``writers``, by id; without both, ``reader`` is the writer's too.
    """

    reader: Schema
    registry: str | None = None
    writers: tuple[tuple[int, str], ...] = ()
    framed: bool = True


class AvroDecoder:
    """*Not thread-safe: belongs to one task's process.* Keeps every schema it met."""

    def __init__(self, format: AvroFormat) -> None:
        """Raises `InvalidConfig` where the reader's schema is none, or is no column."""
        self._format = format
        self._registry = None if format.registry is None else Registry(format.registry)
        self._reader, self._stages = parsed(format.reader)
        self.kind = self._stages[-1]
        self._given = dict(format.writers)
        self._writers: dict[int, Any] = {}
        self._shape = _shape(self.kind)

    def __call__(self, values: pa.Array) -> pa.StructArray:
        """Columns ``value`` and ``reason`` of a column of values.

        Raises:
            RegistryError: the registry cannot be asked: that is no record's fault.
        """
        return decode_column(values, self._decode, self._column)

    def _column(self, found: list[Any]) -> pa.Array:
        """A column of values. Times are cast together: one by one they cost several times as much."""
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
            # Whatever a library does with bytes that are not Avro: EOFError, IndexError, struct.error, ...
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
        """The writer's schema of an id; a text that says why there is none."""
        if self._registry is not None:
            found = self._registry.by_id(number)
            if found is None:
                return f"the registry {self._registry.url} has no schema {number}"
            if found.kind != "AVRO":
                return f"schema {number} is of {found.kind}, not of Avro"
        elif self._given:
            if number not in self._given:
                known = ", ".join(map(str, sorted(self._given)))
                return f"no schema {number} is known; there are {known}"
            found = Schema(self._given[number])
        else:
            return self._reader
        try:
            return _parse(found)
        except InvalidConfig as e:
            return f"schema {number}: {e}"


def parsed(schema: Schema) -> tuple[Any, list[pa.DataType]]:
    """A schema as fastavro takes it, and what `arrow_types` makes of it.

    Raises:
        InvalidConfig: it is no Avro schema, or is no column.
    """
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
    """What turns maps into the pairs that Arrow wants; None where there is none to turn."""
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
