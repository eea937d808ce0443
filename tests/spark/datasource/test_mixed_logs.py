"""A partition of an upgraded cluster, read by Spark: messages of v0 and v1 among batches of today."""

from __future__ import annotations

from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from tests.support.client.scripted_log import ScriptedLog, serving
from tests.support.formats.upgraded_log import EXPECTED, expected_rows, stored_log
from tests.support.spark.frame_rows import assert_rows


@pytest.mark.parametrize("options", [{}, {"minPartitions": "5"}], ids=["one task", "five tasks"])
@pytest.mark.long("several Spark jobs")
def test_rows_of_all_formats_are_those_of_sparks_connector(spark: Any, options: dict[str, str]) -> None:
    with serving(ScriptedLog(stored_log(), at_once=True)) as broker:
        frame = (
            spark.read.format("kafkalog")
            .option("kafka.bootstrap.servers", broker.address)
            .option("subscribe", "t")
            .option("includeHeaders", "true")
            .options(**options)
            .load()
        )
        assert_rows(
            frame.selectExpr(
                "offset", "key", "value", "unix_millis(timestamp) ms", "timestampType", "headers"
            ),
            "offset bigint, key binary, value binary, ms bigint, timestampType int, "
            "headers array<struct<key:string,value:binary>>",
            [(*row, None) for row in expected_rows(0, len(EXPECTED))],
        )


def test_read_arrow_gives_the_table_that_spark_gives(spark: Any) -> None:
    with serving(ScriptedLog(stored_log(), at_once=True)) as broker:
        options = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", "includeHeaders": "true"}
        theirs = spark.read.format("kafkalog").options(**options).load().toArrow()
        ours = kafkalog.read_arrow(options=options).read_all()
    assert ours.num_rows == len(EXPECTED)
    assert theirs.schema.names == ours.schema.names
    # Spark names the session's time zone.
    assert theirs.cast(ours.schema).equals(ours)
