"""Which column an Avro schema is. Pure: no Avro library, no Spark.

As Spark's own Avro source has it: records are structs, enums texts, a union with null is nullable;
``[int, long]`` is a long and ``[float, double]`` a double. Source: Apache Avro 1.12, "Specification".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = "decimal"
"""The one logical type that is read as such. Times become numbers first, and columns of times together; for
the others Spark has no type."""

_MAX_DEPTH = 50


def plain(schema: Any) -> Any:
    """A schema without the logical types that are read as the number or text they are made of."""
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
    """The types of the last schema's values; the others define what it refers to.

    The first is what values are read as, the last what their column is; each can be cast to the next.

    Raises:
        InvalidConfig: it is recursive, has a union of several types, or is no schema.
    """
    found: list[pa.DataType] = []
    for stage in range(_STAGES):
        types = _Types(stage)
        kind = [types.of(schema, "", 0) for schema in schemas][-1]
        if not found or kind != found[-1]:
            found.append(kind)
    return found


class _Types:
    """One walk. *Not thread-safe.* Names are defined where they first stand."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, space: str, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise InvalidConfig(
                f"the Avro schema nests more than {_MAX_DEPTH} deep, or within itself: no column can"
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
        """Note a named type; the namespace that holds inside it."""
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
        raise InvalidConfig(f"the Avro schema has {name!r}, which is no type of Avro and defined nowhere")

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
            f"the Avro schema has a union of {schema}: a column has one type, beside null. Give a reader's "
            "schema of your own that leaves the field out"
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
