"""Passwords that options refer to: the tasks resolve them, and Spark sees the reference."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedBroker

SECRET = "kept-elsewhere-7319"


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    users = f'PlainLoginModule required user_alice="{SECRET}";'
    given = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": users,
    }
    with kafkalog_broker.start_broker(given) as running:
        yield running


def options(secured: EmbeddedBroker, reference: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": secured.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'PlainLoginModule required username="alice" password="{reference}";',
        "kafka.config.providers": "secrets",
        "kafka.config.providers.secrets.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }


@pytest.mark.long("several Spark jobs")
def test_sink_batch_and_stream_log_in_with_a_password_in_a_file(
    spark: Any, secured: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "kafka.properties").write_text(f"password={SECRET}\n")
    given = options(secured, f"${{secrets:{tmp_path}/kafka.properties:password}}")
    frame = spark.range(0, 20, 1, 2).selectExpr("cast(id as string) as value")
    frame.write.format("kafkalog").options(**given).option("topic", "kept").mode("append").save()
    given |= {"subscribe": "kept", "startingOffsets": "earliest"}
    rows = spark.read.format("kafkalog").options(**given).load()
    assert sorted(int(row.value) for row in rows.collect()) == [*range(20)]
    assert SECRET not in rows._jdf.queryExecution().toString()
    stream = spark.readStream.format("kafkalog").options(**given).load()
    checkpoint = tmp_path / "checkpoint"
    query = (
        stream.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True).start(str(tmp_path / "rows"))
    )  # fmt: skip
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 20
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_missing_key_is_named_to_sparks_user(spark: Any, secured: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "kafka.properties").write_text(f"other={SECRET}\n")
    given = options(secured, f"${{secrets:{tmp_path}/kafka.properties:password}}")
    with pytest.raises(AnalysisException, match=r"kafka\.sasl\.jaas\.config: .*has no key password") as e:
        spark.read.format("kafkalog").options(**given, subscribe="kept").load().collect()
    assert SECRET not in "".join(traceback.format_exception(e.value))
