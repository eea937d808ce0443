"""``kafkalog.read_load()``: what loads published, every record once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads import output
from pyspark_kafkalog.loads.errors import LoadError
from pyspark_kafkalog.loads.former import Former, parse_as_of, parse_between
from pyspark_kafkalog.loads.former_ranges import last_of
from pyspark_kafkalog.loads.texts import option_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    *,
    as_of: str | int | None = None,
    between: str | None = None,
    **options: object,
) -> DataFrame:
    """What loads published below ``path``, every record once, with the number of its load in ``load``.

    Only files that a commit in effect lists are read: not those of a load that runs, died or was rewound
    over. ``offsets`` says where the ledgers are if they were moved; ``options`` are those of Spark's reader
    of the table's format, as ``mergeSchema=True``.

    ``as_of`` is a time, ISO 8601 or milliseconds: the table is read as it was then. ``between`` is
    ``commit:30,commit:37``: what loads 31 to 37 wrote.

    Raises:
        InvalidConfig: ``as_of`` is no time, or ``between`` no commits.
        LoadError: the path is not a load's, nothing was committed for it yet, or nothing in it has rows.
    """
    where = output.local_path(path)
    ledger = output.ledger_of(where, offsets)
    former = _former(as_of, between)
    after, until = (former.since, last_of(ledger, former)) if former else (0, None)
    files, kind = output.published(ledger, where, after, until), output.format_of(where)
    if not files:
        raise LoadError(f"{where}: every load so far wrote no file, so not even the columns are known")
    reader = spark.read.options(**option_texts(options)).option("basePath", f"file:{where}")
    return reader.format(kind).load([f"file:{file}" for file in files])


def _former(as_of: str | int | None, between: str | None) -> Former | None:
    if as_of is not None and between is not None:
        raise InvalidConfig("between and as_of say different things: give one of them")
    if as_of is not None:
        return parse_as_of(str(as_of))
    return None if between is None else parse_between(between)
