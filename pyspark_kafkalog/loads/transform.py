"""A user's functions over the source's Arrow batches, which run in tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.decoding.arrow_rows import REASON
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[["pa.RecordBatch"], "pa.RecordBatch | pa.Table"]
"""Turns batches of the source into rows of the table. Called in tasks."""

Decode = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
"""Turns a batch of the source into as many rows, whose last column, `REASON`, says why a record is a dead
letter; null if it is none.
"""


@dataclass(frozen=True)
class RowFunctions:
    """What makes rows of records: first ``decode``, then ``transform`` of what could be decoded."""

    decode: Decode | None = None
    transform: Transform | None = None

    @property
    def is_plain(self) -> bool:
        """Whether rows are records as they came."""
        return self.decode is None and self.transform is None

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """That of the rows, by one empty batch."""
        import pyarrow as pa

        rows, _ = self.of(pa.RecordBatch.from_pylist([], schema=columns))
        return rows[0].schema

    def of(self, batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], pa.Array | None]:
        """The rows of a batch, at least one batch of them for its schema; and, if records are decoded, for
        each its reason. Raises `InvalidConfig` if a function returned something else than it must.
        """
        if self.decode is None:
            return transformed(batch, self.transform), None
        decoded = self.decode(batch)
        reasons = _reasons(decoded, batch.num_rows)
        rows = decoded.select(decoded.schema.names[:-1])
        if reasons.null_count < len(reasons):
            rows = rows.filter(reasons.is_null())
        return transformed(rows, self.transform), reasons


def _reasons(decoded: object, count: int) -> pa.Array:
    import pyarrow as pa

    if not isinstance(decoded, pa.RecordBatch):
        raise InvalidConfig(f"decode= returned {type(decoded).__name__}; it must be a pyarrow RecordBatch")
    names = decoded.schema.names
    if names[-1:] != [REASON] or not pa.types.is_string(decoded.schema.field(len(names) - 1).type):
        raise InvalidConfig(
            f"decode= returned the columns {', '.join(names)}; the last one must be {REASON}, of strings"
        )
    if decoded.num_rows != count:
        raise InvalidConfig(
            f"decode= returned {decoded.num_rows} rows for {count} records: there must be as many"
        )
    return decoded.column(len(names) - 1)


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
