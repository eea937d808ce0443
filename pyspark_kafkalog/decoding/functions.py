"""The functions for users: from a column of bytes to a column ``struct<value, reason>``. ``reason`` says why
a value was not decoded. Python decodes Avro and Protobuf by Arrow batch; Spark itself decodes JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.decoding.schema_registry import HEADER_BYTES
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from pyspark_kafkalog.decoding.avro_values import AvroFormat
    from pyspark_kafkalog.decoding.protobuf_values import ProtobufFormat
    from pyspark_kafkalog.decoding.schema_registry import Schema

_CORRUPT = "_kafkalog_corrupt"


def avro(
    column: Column | str,
    schema: str | os.PathLike[str] | None = None,
    *,
    registry: str | None = None,
    subject: str | None = None,
    writers: str | os.PathLike[str] | Mapping[int, str] | None = None,
    framed: bool = True,
) -> Column:
    """Decode Avro to ``schema``, a file or a schema's text.

    With ``framed``, values have Confluent's header. Its id is looked up in the ``registry`` (URL) or in
    ``writers``, a directory of files ``<id>.avsc`` or a mapping of texts; without both, all values must be
    written with ``schema``. ``subject`` instead of ``schema`` uses the registry's current newest schema of
    it. Files are read now: executors need none.

    Raises:
        InvalidConfig: a schema is invalid or has no column type.
        RegistryError: the registry cannot be reached.
    """
    from pyspark_kafkalog.decoding.avro_values import AvroFormat, parsed

    reader = _reader(schema, registry, subject)
    _, stages = parsed(reader)
    return _decoded(column, AvroFormat(reader, registry, _writers(writers), framed), stages[-1])


def protobuf(
    column: Column | str, descriptors: str | os.PathLike[str], message: str, *, framed: bool = True
) -> Column:
    """Decode Protobuf: ``message`` (full name) in a file of ``protoc --descriptor_set_out``, read now."""
    from pyspark_kafkalog.decoding.protobuf_values import ProtobufDecoder, ProtobufFormat

    format = ProtobufFormat(_bytes_of(descriptors), message, framed)
    return _decoded(column, format, ProtobufDecoder(format).kind)


def json(column: Column | str, schema: StructType | str, *, framed: bool = False) -> Column:
    """Decode JSON objects. ``schema`` is Spark's, as a type or as text: ``"carrier STRING, delay INT"``.

    A missing field is null; a value that is not one object, or has a field of another type, gets a reason.
    Spark decodes without Python; ``framed`` ignores the id in Confluent's header.

    Raises:
        InvalidConfig: the schema is not a struct.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    wanted = t.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, t.StructType):
        raise InvalidConfig(
            "decoding.json needs the schema of an object: a StructType, or its fields as text"
        )
    value = f.col(column) if isinstance(column, str) else column
    no_header = f.lit(False)
    body = value
    if framed:
        body = f.substring(value, HEADER_BYTES + 1, 2**31 - 1)
        no_header = (f.length(value) < HEADER_BYTES) | (f.substring(value, 1, 1) != f.lit(b"\0"))
    text = body.cast("string")
    trimmed = f.trim(f.translate(text, "\t\r\n", "   "))
    is_object = f.startswith(trimmed, f.lit("{")) & f.endswith(trimmed, f.lit("}"))
    # Spark stops reading where the first value ends. So the text goes into an array that ends after it, and
    # into one in which another object follows: unless forged, only one object is one element of both.
    around = t.StructType([t.StructField("v", t.ArrayType(wanted)), t.StructField(_CORRUPT, t.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    found = f.from_json(f.concat(f.lit('{"v":['), text, f.lit("]}")), around, options)
    both = f.from_json(f.concat(f.lit("["), text, f.lit(",{}]")), t.ArrayType(t.StructType()))
    is_one = f.coalesce((f.size(found["v"]) == 1) & (f.size(both) == 2), f.lit(False))
    reason = (
        f.when(value.isNull(), f.lit(None))
        .when(no_header, f.lit("no Confluent header before the JSON"))
        .when(~f.is_valid_utf8(text), f.lit("not UTF-8"))
        .when(~is_object, f.lit("not a JSON object"))
        .when(found[_CORRUPT].isNotNull() | ~is_one, f.lit("not one JSON object, or a field of another type"))
    )
    whole = f.when(value.isNotNull() & reason.isNull(), f.get(found["v"], 0))
    return f.struct(whole.alias("value"), reason.alias("reason"))


def _decoded(column: Column | str, format: AvroFormat | ProtobufFormat, kind: pa.DataType) -> Column:
    import pyarrow as pa
    import pyspark
    from pyspark.sql import types as t

    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:
        raise InvalidConfig(
            f"decoding.avro and decoding.protobuf need PySpark 4.1 or newer, and this is "
            f"{pyspark.__version__}, which has no arrow_udf; decoding.json works with 4.0 too"
        ) from None
    from pyspark.sql.pandas.types import from_arrow_type

    result = t.StructType(
        [t.StructField("value", from_arrow_type(kind)), t.StructField("reason", t.StringType())]
    )

    def decode(values: pa.Array) -> pa.Array:
        return _decoder(format)(values)

    # Spark evaluates the type hints, and accepts strings only if the module has pyarrow.
    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    decoded: Column = arrow_udf(decode, result)(column)  # type: ignore[call-overload]
    return decoded


@cache
def _decoder(format: AvroFormat | ProtobufFormat) -> Callable[[pa.Array], pa.StructArray]:
    """Decoders cache schemas. One per format and process: tasks run here one after the other."""
    from pyspark_kafkalog.decoding.avro_values import AvroDecoder, AvroFormat
    from pyspark_kafkalog.decoding.protobuf_values import ProtobufDecoder

    return AvroDecoder(format) if isinstance(format, AvroFormat) else ProtobufDecoder(format)


def _reader(schema: str | os.PathLike[str] | None, registry: str | None, subject: str | None) -> Schema:
    from pyspark_kafkalog.decoding.schema_registry import Registry, Schema

    if (schema is None) == (subject is None):
        raise InvalidConfig("give schema=..., or subject=... to take it from the registry")
    if schema is not None:
        return Schema(_text(schema))
    if registry is None:
        raise InvalidConfig(f"subject={subject!r} needs registry=..., the URL of the schema registry")
    return Registry(registry).latest(str(subject))


def _text(schema: str | os.PathLike[str]) -> str:
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidConfig(f"the schema cannot be read: {e}") from e


def _writers(given: str | os.PathLike[str] | Mapping[int, str] | None) -> tuple[tuple[int, str], ...]:
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(sorted(given.items()))
    found = {int(file.stem): _text(file) for file in Path(given).glob("*.avsc") if file.stem.isdecimal()}
    if not found:
        raise InvalidConfig(f"{os.fspath(given)} has no schemas: expected are files <id>.avsc")
    return tuple(sorted(found.items()))


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise InvalidConfig(f"the descriptors cannot be read: {e}") from e
