"""Statistics of a written file's columns, which a task sends to the driver for the table's metadata."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST = 64
"""Bytes; a longer text has no bounds: cut, an upper one would be none."""


class ColumnStatistics(msgspec.Struct, frozen=True):
    """Of one flat column: ``values`` with nulls, ``bytes`` as stored, and bounds, None if unknown. Times are
    microseconds and dates days since 1970, decimals texts.
    """

    values: int
    nulls: int | None
    bytes: int
    least: int | str | None = None
    greatest: int | str | None = None


def statistics(metadata: pa.FileMetaData, schema: pa.Schema) -> dict[str, ColumnStatistics]:
    """By column, without nested ones."""
    import pyarrow as pa

    found: dict[str, ColumnStatistics] = {}
    for at in range(metadata.num_columns):
        name = metadata.schema.column(at).path
        if name in schema.names and not pa.types.is_nested(schema.field(name).type):
            chunks = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
            found[name] = _of_column(chunks, schema.field(name).type)
    return found


def _of_column(chunks: list[pa.ColumnChunkMetaData], kind: pa.DataType) -> ColumnStatistics:
    values = sum(chunk.num_values for chunk in chunks)
    size = sum(chunk.total_compressed_size for chunk in chunks)
    given = [chunk.statistics for chunk in chunks]
    if any(one is None or not one.has_null_count for one in given):
        return ColumnStatistics(values, None, size)
    nulls = sum(one.null_count for one in given)
    bounds = [_bounds(one, kind) for one in given if one.num_values]  # those that are not null
    known = [pair for pair in bounds if pair is not None]
    if not known or len(known) < len(bounds):
        return ColumnStatistics(values, nulls, size)
    least, greatest = min(pair[0] for pair in known), max(pair[1] for pair in known)
    if isinstance(least, Decimal):
        least, greatest = str(least), str(greatest)
    return ColumnStatistics(values, nulls, size, least, greatest)


def _bounds(one: pa.Statistics, kind: pa.DataType) -> tuple[Any, Any] | None:
    """None also for floating-point numbers, whose bounds leave out NaN."""
    import pyarrow as pa

    t = pa.types
    if not one.has_min_max:
        return None
    if t.is_integer(kind) or t.is_date(kind) or t.is_timestamp(kind):
        return one.min_raw, one.max_raw
    if t.is_decimal(kind):
        return one.min, one.max
    if t.is_string(kind) and max(len(one.min_raw), len(one.max_raw)) <= _LONGEST:
        return one.min_raw.decode(), one.max_raw.decode()
    return None
