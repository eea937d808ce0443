"""Loads into tables of Delta and Iceberg, run in a PySpark that has their JARs (`spark_environments`)."""

from __future__ import annotations

from typing import Any

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import decoding
from pyspark_kafkalog.ledger.ledger import Ledger


def load(
    spark: Any, *, servers: str, topic: str, offsets: str, table: str, kind: str, name: str = "events",
    fail: str = "", elsewhere: bool = False, **options: str,
) -> dict[str, Any]:  # fmt: skip
    """One load; ``fail`` is ``"before the commit"`` for a driver that dies between the two commits, and
    ``elsewhere`` a session that shares no catalog with the others.
    """
    spark = spark.newSession() if elsewhere else spark
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}
    committing = Ledger.commit
    if fail:

        def die(*_: Any, **__: Any) -> Any:
            raise RuntimeError(fail)

        Ledger.commit = die  # type: ignore[method-assign]
    try:
        with kafkalog.load(spark, name=name, offsets=offsets, **given) as load:  # type: ignore[arg-type]
            rows = load.df.selectExpr("partition", "offset", "cast(value AS string) AS value")
            getattr(load, f"write_{kind}")(table, rows, partition_by="partition")
    finally:
        Ledger.commit = committing  # type: ignore[method-assign]
    if load.commit is None:
        return {}
    (out,) = load.commit.outputs
    return {
        "number": load.commit.number, "mode": load.commit.mode, "records": load.commit.records,
        "format": out.format, **out.evidence,
    }  # fmt: skip


def rows(spark: Any, table: str, kind: str) -> Any:
    """The table as a DataFrame, with what other drivers wrote just now."""
    if kind == "iceberg":
        spark.catalog.refreshTable(table)
    return spark.read.format("delta").load(table) if kind == "delta" else spark.table(table)


def values(spark: Any, *, table: str, kind: str) -> list[int]:
    return sorted(int(row.value) for row in rows(spark, table, kind).collect())


def registered(spark: Any, *, table: str, metadata: str) -> list[list[Any]]:
    """Partition, offset, value and time of each row of an Iceberg table that Spark's catalog did not have."""
    spark.sql(f"CALL ice.system.register_table(table => '{table}', metadata_file => '{metadata}')")
    found = spark.table(f"ice.{table}").selectExpr("partition", "offset", "value", "unix_millis(time) time")
    kept = spark.table(f"ice.{table}").where("value = '14' AND offset > 2").count()
    return [[kept], *sorted([row.partition, row.offset, row.value, row.time] for row in found.collect())]


def commits(spark: Any, *, table: str, kind: str) -> int:
    """How many commits the table has."""
    if kind == "delta":
        return int(spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count())
    return int(spark.sql(f"SELECT * FROM {table}.snapshots").count())


def roll_back(spark: Any, *, table: str, kind: str, by_time: bool = False) -> None:
    """Make the table again what it was before its newest commit."""
    if kind == "iceberg":
        (before, _) = spark.sql(f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at").collect()
        restore(spark, table, kind, before.snapshot_id)
        return
    before = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").orderBy("version", ascending=False).take(2)[1]
    if by_time:
        spark.sql(f"RESTORE TABLE delta.`{table}` TO TIMESTAMP AS OF '{before.timestamp}'")
    else:
        restore(spark, table, kind, before.version)


def restore(spark: Any, table: str, kind: str, version: int) -> None:
    """Make the table again what it was in this version."""
    if kind == "delta":
        spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    else:
        spark.sql(f"CALL ice.system.rollback_to_snapshot('{table.partition('.')[2]}', {version})")


def decoded(spark: Any, *, schema: str, avro: str, json: str) -> list[Any]:
    """Values in hexadecimal, decoded: Avro's field ``n`` and its reason, then JSON's."""
    frame = spark.createDataFrame([(bytes.fromhex(avro), bytes.fromhex(json))], "avro BINARY, json BINARY")
    row = frame.select(
        decoding.avro("avro", schema).alias("a"), decoding.json("json", "n INT").alias("j")
    ).first()
    return [row.a.value.n, row.a.reason, row.j.value.n, row.j.reason]
