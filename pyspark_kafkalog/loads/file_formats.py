"""What a data file tells of itself: its rows, and the columns that Spark wrote. No Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark_kafkalog.loads.commit import ORC, PARQUET
from pyspark_kafkalog.loads.errors import LoadError

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_NAMES = {PARQUET: "Parquet", ORC: "ORC"}


def rows(file: Path, format: str) -> int:
    """Rows of a file, as its footer says.

    Raises:
        OSError: it cannot be read.
        LoadError: it is no whole file of this format.
    """
    # Here and not above: what only lists commits does not wait for Arrow.
    import pyarrow as pa

    try:
        if format == ORC:
            from pyarrow import orc

            return int(orc.ORCFile(file).nrows)
        import pyarrow.parquet as pq

        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # the file system's; of a wrong byte Arrow's ORC says OSError too
        raise LoadError(f"{file} is not a whole {_NAMES[format]} file: {e}") from e


def noted_schema(file: Path) -> str | None:
    """The schema, in its JSON, that Spark notes in Parquet files; None where it cannot be had."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        noted = pq.read_metadata(file).metadata or {}
    except (OSError, pa.ArrowException):
        return None  # it was moved, or is damaged: `verify_outputs` says so
    return noted[_SPARK_SCHEMA].decode() if _SPARK_SCHEMA in noted else None
