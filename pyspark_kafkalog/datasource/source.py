"""``format("kafkalog")``: what Spark registers by itself when it starts (docs/datasource.md)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_kafkalog.datasource.brief_errors import briefly
from pyspark_kafkalog.datasource.options import parse_batch_options
from pyspark_kafkalog.datasource.schema import column_names, columns_of, spark_schema
from pyspark_kafkalog.datasource.stream_options import parse_either_options, parse_stream_options
from pyspark_kafkalog.datasource.table_options import options_for, table_options, with_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from pyspark_kafkalog.datasource.batch_reader import BatchReader
    from pyspark_kafkalog.datasource.stream_reader import StreamReader
    from pyspark_kafkalog.datasource.writer import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """The data source ``kafkalog``. Spark finds it under this name in every ``pyspark_*`` package."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        # Spark makes one source for each load() and pickles it for every plan of a query: a DataFrame that is
        # joined with itself is planned twice, and is one read all the same.
        self._run = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    @briefly
    def schema(self) -> StructType:
        """The seven columns of Spark's Kafka connector, or those that the options ask for.

        Raises:
            InvalidConfig: an option is wrong; so ``load()`` fails, not the first action. What only a batch or
                only a stream may say is checked when that begins: here it is not known which it will be.
        """
        of_table = table_options(self.options)
        options = parse_either_options(self.options if of_table is None else of_table)
        schema = spark_schema(
            column_names(
                options.columns,
                include_headers=options.include_headers,
                include_broker=options.include_broker,
                per_broker=options.v07 is not None,
            )
        )
        return schema if of_table is None else with_options(schema, of_table)

    @briefly
    def reader(self, schema: StructType) -> BatchReader:
        """The batch reader of the columns in ``schema``: ours, or the subset that the user gave.

        With a load name it reads what that load plans.

        Raises:
            InvalidConfig: an option is wrong, or ``schema`` is not made of our columns.
        """
        options = parse_batch_options(options_for(self.options, schema))
        columns = columns_of(schema, per_broker=options.v07 is not None)
        if options.load is not None and options.load.looks_back:
            from pyspark_kafkalog.datasource.time_travel import former_read

            options = former_read(options, options.load)
        if options.load is not None:
            from pyspark_kafkalog.datasource.load_reader import LoadReader

            return LoadReader(options, columns, options.load, self._run)
        from pyspark_kafkalog.datasource.batch_reader import BatchReader

        return BatchReader(options, columns)

    @briefly
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """The stream of the columns in ``schema``: ours, or the subset that the user gave.

        Raises:
            InvalidConfig: an option is wrong, or ``schema`` is not made of our columns.
        """
        from pyspark_kafkalog.datasource.stream_reader import StreamReader

        options = parse_stream_options(options_for(self.options, schema))
        return StreamReader(options, columns_of(schema, per_broker=options.v07 is not None))

    @briefly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of ``df.write``, for rows of ``schema``.

        Raises:
            InvalidConfig: an option is wrong, the mode is overwrite, or ``schema`` cannot be written: before
                any task runs.
        """
        from pyspark_kafkalog.datasource.sink_options import parse_sink_options, sink_options_for
        from pyspark_kafkalog.datasource.writer import batch_writer

        return batch_writer(parse_sink_options(sink_options_for(self.options, schema)), schema, overwrite)

    @briefly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        """The writer of ``df.writeStream``; ``overwrite`` is complete mode, whose batches are written whole.

        Raises:
            InvalidConfig: an option is wrong, or ``schema`` cannot be written.
        """
        from pyspark_kafkalog.datasource.sink_options import parse_sink_options, sink_options_for
        from pyspark_kafkalog.datasource.writer import stream_writer

        return stream_writer(parse_sink_options(sink_options_for(self.options, schema)), schema)
