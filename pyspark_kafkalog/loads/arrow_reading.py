"""The published files of a table as Arrow batches, for `read_load` without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, BinaryIO

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import ORC
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads.output_files import COMPACTION_COLUMN, RUN_COLUMN
from pyspark_kafkalog.loads.partitioning import directory_values

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1 << 16
LOAD = "load"
"""The column with the number of each row's load."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,8})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def arrow_table(store: FileStore, format: str, files: Sequence[str], after: int) -> pa.RecordBatchReader:
    """The rows of loads after number ``after`` in these files, with the columns of the oldest file, those of
    directories, and ``load``. As in Spark, directories' values that are all whole numbers or dates are such.
    """
    import pyarrow as pa

    directories = [_values(file) for file in files]
    kinds = {name: _kind([one.get(name) for one in directories]) for name in directories[0] if name != LOAD}
    own = [field for field in schema_of(store, format, files[0]) if field.name != LOAD]
    made = [pa.field(name, kind) for name, kind in kinds.items()]
    schema = pa.schema([*own, *made, pa.field(LOAD, pa.int32())])
    return pa.RecordBatchReader.from_batches(schema, _rows(store, format, files, schema, after))


def _rows(
    store: FileStore, format: str, files: Sequence[str], schema: pa.Schema, after: int
) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for file in files:
        is_of_many = _values(file).get(LOAD) is None  # a compaction has rows of many loads
        for rows in batches_of(store, format, file, schema):
            yield rows.filter(pc.greater(rows.column(LOAD), after)) if is_of_many and after else rows


def batches_of(store: FileStore, format: str, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One file's rows with these columns: its own, or of its directories; those of neither are null."""
    import pyarrow as pa

    named = _values(file)
    for batch in _batches(store, format, file):
        there = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [_column(field, there, named, batch.num_rows) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(
    field: pa.Field, there: Mapping[str, pa.Array], named: Mapping[str, str | None], count: int
) -> pa.Array:
    import pyarrow as pa

    if field.name in there:
        return there[field.name].cast(field.type)
    text = named.get(field.name)
    if text is None:
        return pa.nulls(count, field.type)
    value: Any = text
    if pa.types.is_integer(field.type):
        value = int(text)
    elif pa.types.is_date(field.type):
        value = date.fromisoformat(text)
    return pa.repeat(pa.scalar(value, field.type), count)


def schema_of(store: FileStore, format: str, file: str) -> pa.Schema:
    """That of one file, with its metadata; times are in UTC where Spark wrote them in its old form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opened(store, file) as opened:
        if format == ORC:
            from pyarrow import orc

            return orc.ORCFile(opened).schema
        found = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        columns = map(found.schema.column, range(len(found.schema)))
        old = {column.path for column in columns if column.physical_type == "INT96"}
        utc = pa.timestamp("us", tz="UTC")
        fields = [one.with_type(utc) if one.name in old else one for one in found.schema_arrow]
        return pa.schema(fields, found.schema_arrow.metadata)


def _batches(store: FileStore, format: str, file: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with _opened(store, file) as opened:
        if format == ORC:
            from pyarrow import orc

            found = orc.ORCFile(opened)
            yield from (found.read_stripe(number) for number in range(found.nstripes))
        else:
            yield from pq.ParquetFile(opened, coerce_int96_timestamp_unit="us").iter_batches(_BATCH_ROWS)


@contextmanager
def _opened(store: FileStore, file: str) -> Iterator[BinaryIO]:
    import pyarrow as pa

    found = store.file(file)
    if found is None:
        raise LoadError(f"{store.location}/{file} is missing; `kafkalog verify` looks for more")
    try:
        with store.open_file(found) as opened:
            yield opened
    except pa.ArrowException as e:
        raise LoadError(f"cannot read {store.location}/{file}: {e}; `kafkalog verify` looks for more") from e


def _values(file: str) -> dict[str, str | None]:
    """Those of a file's directories, without runs and compactions."""
    ours = (RUN_COLUMN, COMPACTION_COLUMN)
    return {name: text for name, text in directory_values(file).items() if name not in ours}


def _kind(texts: Sequence[str | None]) -> pa.DataType:
    import pyarrow as pa

    known = [text for text in texts if text is not None]
    if known and all(_NUMBER.fullmatch(text) for text in known):
        return pa.int32()
    return pa.date32() if known and all(_DATE.fullmatch(text) for text in known) else pa.string()
