"""A partition of an upgraded cluster, read by Spark: messages of v0 and v1 among batches of today."""

from __future__ import annotations

from typing import Any

import pyspark_kafkalog as kafkalog
from tests.support.client.scripted_log import ScriptedLog, serving
from tests.support.formats.upgraded_log import EXPECTED, stored_log


def test_read_arrow_gives_the_table_that_spark_gives(spark: Any) -> None:
    with serving(ScriptedLog(stored_log(), at_once=True)) as broker:
        options = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", "includeHeaders": "true"}
        theirs = spark.read.format("kafkalog").options(**options).load().toArrow()
        ours = kafkalog.read_arrow(options=options).read_all()
    assert ours.num_rows == len(EXPECTED)
    assert theirs.schema.names == ours.schema.names
    # Spark names the session's time zone.
    assert theirs.cast(ours.schema).equals(ours)
