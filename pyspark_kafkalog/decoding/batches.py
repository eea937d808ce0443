"""A column of values to a column of ``struct<value, reason>``: what every decoder of Python has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.wire import Undecodable

if TYPE_CHECKING:
    import pyarrow as pa


def decode_column(values: pa.Array, decode: Callable[[bytes], Any], kind: pa.DataType) -> pa.StructArray:
    """``decode`` of each value, as ``kind``; where it raises `Undecodable`, null and the reason.

    A value that is null, as a compacted topic's deletions are, gives null twice: there is nothing to decode.
    """
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
    column = _as_column(decoded, reasons, kind)
    return pa.StructArray.from_arrays([column, pa.array(reasons, pa.string())], ["value", "reason"])


def _as_column(decoded: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(decoded, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    # One of them does not fit its type, as a damaged number may not: find out which.
    for index, value in enumerate(decoded):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as e:
            decoded[index], reasons[index] = None, f"does not fit the column: {e}"
    return pa.array(decoded, kind)
