"""Loads without Spark and without a JVM into a bucket: Parquet, Delta and Iceberg, and their ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.ledger.stores.object_clients import object_options
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.datasource.spark_topics import Topic
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server
from tests.support.loads.iceberg_threads import end_threads
from tests.support.protocol.raw_client import RawClient


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as port:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}"
    end_threads()


@pytest.mark.long("a server of S3")
def test_one_load_fills_three_tables(
    bucket: str, running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path
) -> None:
    rows = Topic(client, topic)
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": running_broker.bootstrap_servers,
        "subscribe": topic,
    }
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{bucket}/lake",
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
    }  # fmt: skip
    for number in (1, 2):
        rows.add(*range(10 * number, 10 * number + 5))
        with kafkalog.load(None, name="events", offsets=f"{bucket}/offsets", **options) as load:
            load.write_parquet(f"{bucket}/files", partition_by_time="timestamp")
            load.write_delta(f"{bucket}/delta", partition_by_time="timestamp")
            load.write_iceberg("db.events", catalog=catalog, partition_by_time="timestamp")
        assert load.commit is not None
        assert (load.number, load.commit.records) == (number, 5)
    assert load.ledger.verify() == []
    assert verify_outputs(load.ledger.lineage()) == []
    delta = DeltaTable(f"{bucket}/delta", storage_options=object_options(f"{bucket}/delta"))
    iceberg = load_catalog("default", **catalog).load_table("db.events")
    for table in (pa.table(delta.to_pyarrow_table()), iceberg.scan().to_arrow()):
        assert sorted(map(int, table["value"].to_pylist())) == [*range(10, 15), *range(20, 25)]
