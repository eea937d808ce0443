"""Topics of Kafka 0.7 into a database: partitions are a broker's, and an offset is a byte's position."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyspark_kafkalog.loads.load import load
from pyspark_kafkalog.loads.sql.database import database_of
from pyspark_kafkalog.loads.sql.reconcile import audit_sql
from tests.support.client.broker07 import Broker07
from tests.support.datasource.source07 import QUICK
from tests.support.loads.local_spark import LocalSpark
from tests.support.protocol.wire07 import entry, zipped


def test_two_brokers_partitions_of_one_number_are_distinguished(tmp_path: Path) -> None:
    url, spark = f"sqlite:///{tmp_path}/old.db", cast("Any", LocalSpark())
    one, packed = entry(b"one"), zipped(entry(b"p1"), entry(b"p2"))
    with Broker07(partitions=1) as first, Broker07(partitions=1) as second:
        first.append("t", 0, one)
        second.append("t", 0, one + packed)
        options: dict[str, Any] = {
            "protocol": "0.7", "subscribe": "t", "includeBroker": True, **QUICK,
            "broker.list": f"3:{first.address},14:{second.address}",
        }  # fmt: skip
        with load(spark, name="old", offsets=tmp_path / "offsets", **options) as current:
            current.write_sql(url, "old")
    with database_of(url).session() as session:
        rows = session.query('SELECT broker, "offset", "innerIndex", value FROM old ORDER BY 1, 2, 3')
        ranges = session.query(
            "SELECT broker, kafka_partition, start_offset, end_offset, row_count FROM _kafkalog_offsets "
            "ORDER BY broker"
        )
    size = len(one)
    assert rows == [(3, 0, 0, b"one"), (14, 0, 0, b"one"), (14, size, 0, b"p1"), (14, size, 1, b"p2")]
    assert ranges == [(3, 0, 0, size, 1), (14, 0, 0, size + len(packed), 3)]
    assert audit_sql("old", str(tmp_path / "offsets"), url) == []
