"""Decoders of Arrow batches, for ``decode=`` of loads and wherever there is no Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.decoding.json_decoder import JsonFormat
from pyspark_kafkalog.decoding.value_formats import (
    Format,
    PathOrText,
    Writers,
    avro_format,
    decoder_of,
    protobuf_format,
)
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

REASON = "reason"


@dataclass(frozen=True)
class RowDecoder:
    """Decodes column ``column`` of a batch, and appends the column ``reason``: why a value was not decoded,
    null if it was. A record's fields take the column's place; with ``into``, one column of that name does.
    """

    format: Format
    column: str = "value"
    into: str | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """As many rows. Raises `InvalidConfig` if there is no such column, or two columns would have one
        name; `RegistryError` if the schema registry cannot be reached.
        """
        import pyarrow as pa

        names = rows.schema.names
        if self.column not in names:
            raise InvalidConfig(f"decode= needs the column {self.column}; there are {', '.join(names)}")
        at = names.index(self.column)
        decoded = decoder_of(self.format)(rows.column(at))
        value, reason = decoded.field("value"), decoded.field("reason")
        is_flat = self.into is None and pa.types.is_struct(value.type)
        made = {field.name: value for field in value.type} if is_flat else {self.into or self.column: value}
        if is_flat:
            # Unlike `field`, it is null where the record is.
            made = dict(zip(made, value.flatten(), strict=True))
        columns = [*rows.columns[:at], *made.values(), *rows.columns[at + 1 :], reason]
        found = [*names[:at], *made, *names[at + 1 :], REASON]
        _check_names(found)
        return pa.RecordBatch.from_arrays(columns, found)


def _check_names(names: Sequence[str]) -> None:
    lower = [name.lower() for name in names]  # as Spark and other readers of tables compare them
    twice = sorted({name for name in names if lower.count(name.lower()) > 1})
    if twice:
        raise InvalidConfig(
            f"decoded values have the fields {', '.join(twice)}, as other columns: keep them in one column "
            "with into='...', or leave them out of the schema"
        )


def json_values(
    schema: pa.Schema | Mapping[str, pa.DataType],
    *,
    column: str = "value",
    into: str | None = None,
    framed: bool = False,
) -> RowDecoder:
    """Decode JSON objects to the columns ``schema``, of Arrow's types.

    A missing field is null, others are ignored. A value that is not one object, or has a field of another
    type, gets a reason. Dates and times are ISO 8601, without a zone in UTC. ``framed`` ignores the id in
    Confluent's header. Raises `InvalidConfig` for a type that JSON cannot have.
    """
    import pyarrow as pa

    fields = schema if isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))
    return _decoder(JsonFormat(fields, framed), column, into)


def avro_values(
    schema: PathOrText | None = None,
    *,
    column: str = "value",
    into: str | None = None,
    registry: str | None = None,
    subject: str | None = None,
    writers: Writers | None = None,
    framed: bool = True,
) -> RowDecoder:
    """Decode Avro, with the arguments of `avro`."""
    return _decoder(avro_format(schema, registry, subject, writers, framed), column, into)


def protobuf_values(
    descriptors: str | os.PathLike[str],
    message: str,
    *,
    column: str = "value",
    into: str | None = None,
    framed: bool = True,
) -> RowDecoder:
    """Decode Protobuf, with the arguments of `protobuf`."""
    return _decoder(protobuf_format(descriptors, message, framed), column, into)


def _decoder(format: Format, column: str, into: str | None) -> RowDecoder:
    decoder_of(format)  # what cannot be decoded is refused here, not in tasks
    return RowDecoder(format, column, into)
