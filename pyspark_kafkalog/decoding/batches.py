"""Decodes a column of values to ``struct<value, reason>``; shared by the decoders in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.schema_registry import Undecodable

if TYPE_CHECKING:
    import pyarrow as pa


def decode_column(
    values: pa.Array, decode: Callable[[bytes], Any], column_of: Callable[[list[Any]], pa.Array]
) -> pa.StructArray:
    """Decode each value and collect with ``column_of``; `Undecodable` becomes null with a reason."""
    import pyarrow as pa

    decoded: list[Any] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        found, reason = None, None
        if value is not None:
            try:
                found = decode(value)
            except Undecodable as e:
                reason = str(e)
        decoded.append(found)
        reasons.append(reason)
    column = _column(decoded, reasons, column_of)
    return pa.StructArray.from_arrays([column, pa.array(reasons, pa.string())], ["value", "reason"])


def _column(
    decoded: list[Any], reasons: list[str | None], column_of: Callable[[list[Any]], pa.Array]
) -> pa.Array:
    import pyarrow as pa

    misfits = (pa.ArrowException, OverflowError, TypeError, ValueError)
    try:
        return column_of(decoded)
    except misfits:
        pass
    # A value, such as a damaged number, does not fit its type: find it.
    for index, value in enumerate(decoded):
        try:
            column_of([value])
        except misfits as e:
            decoded[index], reasons[index] = None, f"does not fit the column: {e}"
    return column_of(decoded)
