"""JSON, Avro and Protobuf values to columns, with or without Confluent's wire header.

    from pyspark_kafkalog import decoding

    load.write_parquet("/lake/flights", decode=decoding.avro_values("flight.avsc"))

    decoded = load.df.withColumn("d", decoding.avro("value", "flight.avsc", registry="http://registry:8081"))
    decoded.select("offset", "d.value.*", "d.reason")

``*_values`` decode Arrow batches, the others Spark's columns. Docs: docs/loads.md, "Decoding". Heavy
libraries are imported when a function is called.
"""

from __future__ import annotations

from pyspark_kafkalog.decoding.arrow_rows import RowDecoder, avro_values, json_values, protobuf_values
from pyspark_kafkalog.decoding.spark_columns import avro, json, protobuf

__all__ = ["RowDecoder", "avro", "avro_values", "json", "json_values", "protobuf", "protobuf_values"]
