"""Decoding as columns of Spark: JSON and Avro of a topic, with what could not be decoded as dead letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import decoding
from tests.support.datasource.spark_topics import Topic
from tests.support.foreign.schema_registry import running_registry
from tests.support.formats.avro_bytes import avro_bytes
from tests.support.spark.frame_rows import assert_rows

FLIGHT = {
    "type": "record", "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip


@pytest.mark.long("several Spark jobs")
def test_avro_is_decoded_in_the_tasks_and_what_is_none_becomes_a_dead_letter(
    spark: Any, server: Any, new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = new_topic(prefix="decoded")
    flights = [{"carrier": name, "at": 1000, "tags": {name: 1}} for name in ("AA", "B6")]
    options = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic.name}
    with running_registry() as registry:
        registry.add(FLIGHT, id=3, subject="flights-value")
        good = [avro_bytes(FLIGHT, flight, 3) for flight in flights]
        topic.add(good[0], good[1][:-2], good[1], avro_bytes(FLIGHT, flights[0], 4))
        flight = decoding.avro("value", registry=registry.url, subject="flights-value")
        with kafkalog.load(spark, name="flights", offsets=tmp_path / "offsets", **options) as load:
            decoded = load.df.withColumn("d", flight).withColumn("reason", f.col("d.reason"))
            whole = load.dead_letters(decoded, max_dead=2)
            load.write_parquet(tmp_path / "table", whole.select("offset", "d.value.*"))
    assert_rows(
        kafkalog.read_load(spark, tmp_path / "table").selectExpr(
            "offset", "carrier", "unix_millis(at) ms", "map_entries(tags) tags"
        ),
        "offset bigint, carrier string, ms bigint, tags array<struct<key:string,value:int>>",
        [(0, "AA", 1000, [("AA", 1)]), (2, "B6", 1000, [("B6", 1)])],
    )
    dead = kafkalog.read_dead(spark, "flights", offsets=tmp_path / "offsets")
    assert_rows(
        dead.select("offset", "value"),
        "offset bigint, value binary",
        [(1, good[1][:-2]), (3, avro_bytes(FLIGHT, flights[0], 4))],
    )
    reasons = [row.reason for row in dead.orderBy("offset").collect()]
    assert reasons[0].startswith("not Avro of schema 3: ")
    assert reasons[1] == f"the registry {registry.url} has no schema 4"


def test_json_is_decoded_by_spark_and_what_is_none_has_a_reason(spark: Any) -> None:
    values = [
        b'{"a": 1, "b": "x"}', b' {"a": 2}\n', b'{"a": "no number"}', b'{"a": 3', b'[{"a": 4}]', b"",
        b'{"a": 5}{"a": 6}x', b'"text"', None, b'{"a": 7, "c": null}', b'{"b": "\xff"}',
        b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}\n', b'{"a": 1} lost }', b'{"a": 1}}', b'{"a": 1}] }',
        b'{"a": 1}]}}', b'{"a": 1},{"a": 2}', b'{"a": 8, "b": "}{"}', b'{"b": "x\ny"}',
    ]  # fmt: skip
    frame = spark.createDataFrame([(at, value) for at, value in enumerate(values)], "at INT, value BINARY")
    found = frame.select("at", decoding.json("value", "a INT, b STRING").alias("d")).select("at", "d.*")
    no_object, wrong = (None, "not a JSON object"), (None, "not one JSON object, or a field of another type")
    expected = [
        ((1, "x"), None), ((2, None), None), wrong, no_object, no_object, no_object, no_object, no_object,
        (None, None), ((7, None), None), (None, "not UTF-8"),
        wrong, wrong, wrong, wrong, wrong, wrong, wrong, ((8, "}{"), None), wrong,
    ]  # fmt: skip
    assert_rows(
        found,
        "at int, value struct<a:int,b:string>, reason string",
        [(at, *row) for at, row in enumerate(expected)],
    )
    twice = spark.createDataFrame([('{"id": 1, "ID": 2}',)], "value STRING")
    assert twice.select(decoding.json("value", "id INT, ID INT")).first()[0] == ((1, 2), None)
    framed = spark.createDataFrame([(b'\0\0\0\0\x07{"a": 1}',), (b'{"a": 1}',), (b"\0\0",)], "value BINARY")
    assert_rows(
        framed.select(decoding.json("value", "a INT", framed=True).alias("d")).select("d.*"),
        "value struct<a:int>, reason string",
        [((1,), None), *[(None, "no Confluent header before the JSON")] * 2],
    )
