"""A partition of an upgraded cluster, read by Spark: messages of v0 and v1 among batches of today."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.scripted_log import ScriptedLog, serving
from tests.support.upgraded_log import EXPECTED, expected_rows, stored_log


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
        found = frame.selectExpr(
            "offset", "key", "value", "unix_millis(timestamp) AS ms", "timestampType", "headers"
        ).collect()
    rows = sorted((r.offset, r.key, r.value, r.ms, r.timestampType) for r in found)
    as_bytes = [(o, k and bytes(k), v and bytes(v), ms, kind) for o, k, v, ms, kind in rows]
    assert as_bytes == expected_rows(0, len(EXPECTED))
    assert {row.headers for row in found} == {None}
