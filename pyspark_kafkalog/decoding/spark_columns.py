"""Spark's columns: from a column of bytes to a column ``struct<value, reason>``. ``reason`` says why a value
was not decoded. Python decodes Avro and Protobuf by Arrow batch; Spark itself decodes JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.decoding.schema_registry import HEADER_BYTES
from pyspark_kafkalog.decoding.value_formats import Format, avro_format, decoder_of, protobuf_format
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

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
    return _decoded(column, avro_format(schema, registry, subject, writers, framed))


def protobuf(
    column: Column | str, descriptors: str | os.PathLike[str], message: str, *, framed: bool = True
) -> Column:
    """Decode Protobuf: ``message`` (full name) in a file of ``protoc --descriptor_set_out``, read now."""
    return _decoded(column, protobuf_format(descriptors, message, framed))


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


def _decoded(column: Column | str, format: Format) -> Column:
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
        [
            t.StructField("value", from_arrow_type(decoder_of(format).kind)),
            t.StructField("reason", t.StringType()),
        ]
    )

    def decode(values: pa.Array) -> pa.Array:
        return decoder_of(format)(values)

    # Spark evaluates the type hints, and accepts strings only if the module has pyarrow.
    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    decoded: Column = arrow_udf(decode, result)(column)  # type: ignore[call-overload]
    return decoded
