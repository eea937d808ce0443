"""``format("kafkalog")``, which Spark registers when it starts (docs/datasource.md)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_kafkalog.datasource.options.read_options import (
    parse_batch_options,
    parse_either_options,
    parse_stream_options,
)
from pyspark_kafkalog.datasource.options.row_schema import columns_of, has_local_times, spark_schema
from pyspark_kafkalog.errors import InvalidConfig, briefly

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader
    from pyspark_kafkalog.datasource.sink.sink_writer import BatchWriter, StreamWriter
    from pyspark_kafkalog.datasource.stream.stream_reader import StreamReader


class DefaultSource(DataSource):
    """The data source ``kafkalog``. Spark finds it under this name in every ``pyspark_*`` package."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        # Spark creates one source for each load() and pickles it for every plan of a query: a DataFrame
        # joined with itself is planned twice, and is still one read.
        self._run = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    @briefly
    def schema(self) -> StructType:
        """The seven columns of Spark's Kafka connector, or those that the options ask for. Raises
        `InvalidConfig`, so that ``load()`` fails, not the first action; what only a batch or a stream may
        have is checked when it begins.
        """
        of_table = table_options(self.options)
        options = parse_either_options(self.options if of_table is None else of_table)
        schema = spark_schema(options.row_columns)
        return schema if of_table is None else with_options(schema, of_table)

    @briefly
    def reader(self, schema: StructType) -> BatchReader:
        reader = self._reader(schema)
        reader.has_local_times = has_local_times(schema)
        return reader

    def _reader(self, schema: StructType) -> BatchReader:
        options = parse_batch_options(options_for(self.options, schema))
        columns = columns_of(schema, per_broker=options.per_broker)
        if options.load is not None and options.load.looks_back:
            from pyspark_kafkalog.datasource.batch.load_planning import read_again

            options = read_again(options, options.load)
        if options.load is not None:
            from pyspark_kafkalog.datasource.batch.load_reader import LoadReader

            return LoadReader(options, columns, options.load, self._run)
        from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader

        return BatchReader(options, columns)

    @briefly
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from pyspark_kafkalog.datasource.stream.stream_reader import StreamReader

        options = parse_stream_options(options_for(self.options, schema))
        reader = StreamReader(options, columns_of(schema, per_broker=options.per_broker))
        reader.has_local_times = has_local_times(schema)
        return reader

    @briefly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from pyspark_kafkalog.datasource.options.sink_options import parse_sink_options
        from pyspark_kafkalog.datasource.sink.sink_writer import batch_writer

        return batch_writer(parse_sink_options(sink_options_for(self.options, schema)), schema, overwrite)

    @briefly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        """The writer of ``df.writeStream``; ``overwrite`` is complete mode, which writes each batch whole."""
        from pyspark_kafkalog.datasource.options.sink_options import parse_sink_options
        from pyspark_kafkalog.datasource.sink.sink_writer import stream_writer

        return stream_writer(parse_sink_options(sink_options_for(self.options, schema)), schema)


_KEY = "kafkalog.options"
_OF_TABLE = "option."
"""Prefix of each option that the catalog adds beside the option itself."""
_MADE_BY = "provider"


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    if _MADE_BY not in options:
        return None
    return {key[len(_OF_TABLE) :]: value for key, value in options.items() if key.startswith(_OF_TABLE)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    schema.fields[0].metadata = {_KEY: json.dumps(dict(options), sort_keys=True)}
    return schema


def options_for(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    kept = next((f.metadata[_KEY] for f in schema.fields if f.metadata and _KEY in f.metadata), None)
    if kept is None:
        return dict(given)
    try:
        options = json.loads(kept)
        of_table = {str(key).lower(): str(value) for key, value in options.items()}
    except (TypeError, ValueError, AttributeError) as e:
        raise InvalidConfig(
            f"the table's options cannot be read from its schema: {e}; create the table again"
        ) from e
    return {**of_table, **given}


def sink_options_for(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The given options; for an insert, the table's: they are in the columns of rows read from a table."""
    is_insert = "kafka.bootstrap.servers" not in {key.lower() for key in given}
    return options_for(given, schema) if is_insert else given
