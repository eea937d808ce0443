"""What Spark's JVM says is told in a sentence where the JARs are the cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.writers.spark_tables import SparkDeltaTable, SparkIcebergTable

# As py4j tells it, without the hundred lines that follow.
DELTA = (
    "An error occurred while calling o40.sql.\n: java.lang.NoSuchMethodError: 'void "
    "org.apache.spark.sql.execution.LogicalRDD.<init>(scala.collection.immutable.Seq)'\n\tat org.apache"
)
ICEBERG = (
    "An error occurred while calling o76.tableExists.\n: java.lang.IncompatibleClassChangeError: class "
    "org.apache.iceberg.spark.source.SparkView can not implement org.apache.spark.sql.connector.catalog.View"
)


class Session:
    version = "4.3.0"

    def __init__(self, text: str) -> None:
        self.text = text
        self.catalog = self

    def sql(self, _: str) -> None:
        raise RuntimeError(self.text)

    tableExists = sql  # noqa: N815 - Spark's


@pytest.mark.parametrize(
    ("table", "text", "error"),
    [
        (SparkDeltaTable("/lake/t"), DELTA, "NoSuchMethodError"),
        (SparkIcebergTable("ice.db.t"), ICEBERG, "IncompatibleClassChangeError"),
    ],
    ids=["delta", "iceberg"],
)
def test_jars_for_another_spark_are_told_in_a_sentence(table: Any, text: str, error: str) -> None:
    with pytest.raises(LoadError) as raised:
        table.find(SimpleNamespace(session=Session(text)))
    said = str(raised.value)
    assert said.startswith(f"{table.table}: the session's JARs, probably those of {table.format}, do not fit")
    assert f"The JVM says {error}: " in said
    assert "\n" not in said


def test_other_errors_are_spark_s_own() -> None:
    with pytest.raises(RuntimeError, match="permission denied"):
        SparkDeltaTable("/lake/t").find(SimpleNamespace(session=Session("permission denied")))  # type: ignore[arg-type]
