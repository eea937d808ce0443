"""A user's function over the source's Arrow batches, which runs in tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[["pa.RecordBatch"], "pa.RecordBatch | pa.Table"]
"""Turns batches of the source into rows of the table. Called in tasks."""


def transformed(batch: pa.RecordBatch, transform: Transform | None) -> list[pa.RecordBatch]:
    """The rows that ``transform`` makes of a batch: at least one batch, perhaps empty, for its schema."""
    import pyarrow as pa

    if transform is None:
        return [batch]
    made = transform(batch)
    if isinstance(made, pa.Table):
        return list(made.to_batches()) or [pa.RecordBatch.from_pylist([], schema=made.schema)]
    if isinstance(made, pa.RecordBatch):
        return [made]
    raise InvalidConfig(
        f"transform= returned {type(made).__name__}; it must be a pyarrow RecordBatch or Table"
    )


def transformed_schema(columns: pa.Schema, transform: Transform | None) -> pa.Schema:
    """The columns of the rows, by one empty batch."""
    import pyarrow as pa

    return transformed(pa.RecordBatch.from_pylist([], schema=columns), transform)[0].schema
