"""A partition of an upgraded cluster, read by Spark: messages of v0 and v1 among batches of today."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client.scripted_log import ScriptedLog, serving
from tests.support.formats.upgraded_log import EXPECTED, expected_rows, stored_log
from tests.support.spark.frame_rows import assert_rows


@pytest.mark.parametrize("options", [{}, {"minPartitions": "5"}], ids=["one task", "five tasks"])
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
