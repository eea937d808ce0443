"""JSON, Avro and Protobuf values to columns, with or without Confluent's wire header.

    from pyspark_kafkalog import decoding

    decoded = load.df.withColumn("d", decoding.avro("value", "flight.avsc", registry="http://registry:8081"))
    decoded.select("offset", "d.value.*", "d.reason")

Docs: docs/loads.md, "Decoding". Heavy libraries are imported when a function is called.
"""

from __future__ import annotations

from pyspark_kafkalog.decoding.functions import avro, json, protobuf

__all__ = ["avro", "json", "protobuf"]
